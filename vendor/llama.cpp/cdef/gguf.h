/* Reading the metadata and the tensor directory of a GGUF file. */

struct ggml_context;
struct gguf_context;

enum gguf_type {
    GGUF_TYPE_UINT8 = 0,
    GGUF_TYPE_INT8 = 1,
    GGUF_TYPE_UINT16 = 2,
    GGUF_TYPE_INT16 = 3,
    GGUF_TYPE_UINT32 = 4,
    GGUF_TYPE_INT32 = 5,
    GGUF_TYPE_FLOAT32 = 6,
    GGUF_TYPE_BOOL = 7,
    GGUF_TYPE_STRING = 8,
    GGUF_TYPE_ARRAY = 9,
    GGUF_TYPE_UINT64 = 10,
    GGUF_TYPE_INT64 = 11,
    GGUF_TYPE_FLOAT64 = 12,
    GGUF_TYPE_COUNT
};

struct gguf_init_params {
    bool no_alloc;             /* true: leave the weights on disk */
    struct ggml_context **ctx; /* NULL: no tensor objects wanted */
};

struct gguf_context *gguf_init_from_file(const char *fname, struct gguf_init_params params);
void gguf_free(struct gguf_context *ctx);

uint32_t gguf_get_version(const struct gguf_context *ctx);
size_t gguf_get_data_offset(const struct gguf_context *ctx);

/* A getter of the wrong type, or an id out of range, aborts the process. */
int64_t gguf_get_n_kv(const struct gguf_context *ctx);
int64_t gguf_find_key(const struct gguf_context *ctx, const char *key);
const char *gguf_get_key(const struct gguf_context *ctx, int64_t key_id);
enum gguf_type gguf_get_kv_type(const struct gguf_context *ctx, int64_t key_id);
enum gguf_type gguf_get_arr_type(const struct gguf_context *ctx, int64_t key_id);
const char *gguf_get_val_str(const struct gguf_context *ctx, int64_t key_id);
const void *gguf_get_val_data(const struct gguf_context *ctx, int64_t key_id);
size_t gguf_get_arr_n(const struct gguf_context *ctx, int64_t key_id);
const void *gguf_get_arr_data(const struct gguf_context *ctx, int64_t key_id);
const char *gguf_get_arr_str(const struct gguf_context *ctx, int64_t key_id, size_t i);

int64_t gguf_get_n_tensors(const struct gguf_context *ctx);
const char *gguf_get_tensor_name(const struct gguf_context *ctx, int64_t tensor_id);
size_t gguf_get_tensor_offset(const struct gguf_context *ctx, int64_t tensor_id);
const int64_t *gguf_get_tensor_ne(const struct gguf_context *ctx, int64_t tensor_id); /* always four */
enum ggml_type gguf_get_tensor_type(const struct gguf_context *ctx, int64_t tensor_id);
size_t gguf_get_tensor_size(const struct gguf_context *ctx, int64_t tensor_id);

const char *ggml_type_name(enum ggml_type type);
