/* Scalars, opaque handles and the enums that several concepts share. */

typedef int32_t llama_pos;    /* position of a token inside its sequence */
typedef int32_t llama_token;  /* vocabulary id; -1 stands for "no such token" */
typedef int32_t llama_seq_id;

struct llama_model;
struct llama_vocab;
struct llama_context;
struct llama_sampler;
struct llama_memory_i;
typedef struct llama_memory_i *llama_memory_t;

struct ggml_tensor;
typedef struct ggml_backend_buffer_type *ggml_backend_buffer_type_t;
typedef struct ggml_backend_device *ggml_backend_dev_t;
typedef struct ggml_backend_reg *ggml_backend_reg_t;
typedef struct ggml_backend *ggml_backend_t;
typedef struct ggml_backend_sched *ggml_backend_sched_t;

/* Holes are formats that upstream withdrew. */
enum ggml_type {
    GGML_TYPE_F32 = 0,
    GGML_TYPE_F16 = 1,
    GGML_TYPE_Q4_0 = 2,
    GGML_TYPE_Q4_1 = 3,
    GGML_TYPE_Q5_0 = 6,
    GGML_TYPE_Q5_1 = 7,
    GGML_TYPE_Q8_0 = 8,
    GGML_TYPE_Q8_1 = 9,
    GGML_TYPE_Q2_K = 10,
    GGML_TYPE_Q3_K = 11,
    GGML_TYPE_Q4_K = 12,
    GGML_TYPE_Q5_K = 13,
    GGML_TYPE_Q6_K = 14,
    GGML_TYPE_Q8_K = 15,
    GGML_TYPE_IQ2_XXS = 16,
    GGML_TYPE_IQ2_XS = 17,
    GGML_TYPE_IQ3_XXS = 18,
    GGML_TYPE_IQ1_S = 19,
    GGML_TYPE_IQ4_NL = 20,
    GGML_TYPE_IQ3_S = 21,
    GGML_TYPE_IQ2_S = 22,
    GGML_TYPE_IQ4_XS = 23,
    GGML_TYPE_I8 = 24,
    GGML_TYPE_I16 = 25,
    GGML_TYPE_I32 = 26,
    GGML_TYPE_I64 = 27,
    GGML_TYPE_F64 = 28,
    GGML_TYPE_IQ1_M = 29,
    GGML_TYPE_BF16 = 30,
    GGML_TYPE_TQ1_0 = 34,
    GGML_TYPE_TQ2_0 = 35,
    GGML_TYPE_MXFP4 = 39,
    GGML_TYPE_NVFP4 = 40,
    GGML_TYPE_Q1_0 = 41,
    GGML_TYPE_Q2_0 = 42,
    GGML_TYPE_COUNT = 43
};

/* Asked between graph nodes; true stops the evaluation. CPU backend only. */
typedef bool (*ggml_abort_callback)(void *data);
/* Called with ask = true before and ask = false after a tensor is computed. */
typedef bool (*ggml_backend_sched_eval_callback)(struct ggml_tensor *tensor, bool ask, void *user_data);
/* Called with 0..1 while weights load; false stops the load. */
typedef bool (*llama_progress_callback)(float progress, void *user_data);
