/* Loading a model and asking it for facts. */

enum llama_split_mode {
    LLAMA_SPLIT_MODE_NONE = 0,
    LLAMA_SPLIT_MODE_LAYER = 1,
    LLAMA_SPLIT_MODE_ROW = 2,
    LLAMA_SPLIT_MODE_TENSOR = 3
};

enum llama_load_mode {
    LLAMA_LOAD_MODE_AUTO = -1,
    LLAMA_LOAD_MODE_NONE = 0,
    LLAMA_LOAD_MODE_MMAP = 1,
    LLAMA_LOAD_MODE_MLOCK = 2,
    LLAMA_LOAD_MODE_MMAP_MLOCK = 3,
    LLAMA_LOAD_MODE_DIRECT_IO = 4
};

enum llama_lazy_mode {
    LLAMA_LAZY_MODE_OFF = 0,
    LLAMA_LAZY_MODE_AUTO = 1,
    LLAMA_LAZY_MODE_ON = 2
};

/* The values other than NONE and NORM are ggml's rope mode bits. */
enum llama_rope_type {
    LLAMA_ROPE_TYPE_NONE = -1,
    LLAMA_ROPE_TYPE_NORM = 0,
    LLAMA_ROPE_TYPE_NEOX = 2,
    LLAMA_ROPE_TYPE_MROPE = 8,
    LLAMA_ROPE_TYPE_VISION = 24,
    LLAMA_ROPE_TYPE_IMROPE = 40
};

struct llama_model_tensor_buft_override;
struct llama_model_kv_override;

struct llama_model_params {
    ggml_backend_dev_t *devices; /* NULL-terminated; NULL: every device */
    const struct llama_model_tensor_buft_override *tensor_buft_overrides;
    int32_t n_gpu_layers; /* negative: all */
    enum llama_split_mode split_mode;
    enum llama_load_mode load_mode;
    enum llama_lazy_mode lazy_mode;
    int32_t main_gpu;
    const float *tensor_split;
    llama_progress_callback progress_callback;
    void *progress_callback_user_data;
    const struct llama_model_kv_override *kv_overrides;
    bool vocab_only;
    bool check_tensors;
    bool use_extra_bufts; /* repacked CPU kernels */
    bool no_host;
    bool no_alloc;
    bool load_mtp; /* built-in NextN heads */
};

struct llama_model_params llama_model_default_params(void);
struct llama_model *llama_model_load_from_file(const char *path_model, struct llama_model_params params);
void llama_model_free(struct llama_model *model);

/* The writers of strings return the length they wanted, or -1 when there is nothing to write. */
int32_t llama_model_desc(const struct llama_model *model, char *buf, size_t buf_size);

uint64_t llama_model_size(const struct llama_model *model);
uint64_t llama_model_n_params(const struct llama_model *model);
int32_t llama_model_n_ctx_train(const struct llama_model *model);
int32_t llama_model_n_embd(const struct llama_model *model);
int32_t llama_model_n_embd_out(const struct llama_model *model);
int32_t llama_model_n_layer(const struct llama_model *model); /* the trunk, without NextN blocks */
int32_t llama_model_n_layer_nextn(const struct llama_model *model);
int32_t llama_model_n_head(const struct llama_model *model);
int32_t llama_model_n_head_kv(const struct llama_model *model);
int32_t llama_model_n_swa(const struct llama_model *model);
enum llama_rope_type llama_model_rope_type(const struct llama_model *model);
bool llama_model_has_encoder(const struct llama_model *model);
bool llama_model_has_decoder(const struct llama_model *model);
bool llama_model_is_recurrent(const struct llama_model *model);
bool llama_model_is_hybrid(const struct llama_model *model);
bool llama_model_is_diffusion(const struct llama_model *model);
const struct llama_vocab *llama_model_get_vocab(const struct llama_model *model);
