/* How a context is made, as of 0c1e57098: before moe_cache_size. */

struct llama_sampler_seq_config {
    llama_seq_id seq_id;
    struct llama_sampler *sampler;
};

struct llama_context_params {
    uint32_t n_ctx;     /* 0: what the model was trained with */
    uint32_t n_batch;   /* most tokens in one call */
    uint32_t n_ubatch;  /* most tokens computed at a time */
    uint32_t n_seq_max; /* sequences kept apart */
    uint32_t n_rs_seq;  /* recurrent states kept per sequence for rollback */
    uint32_t n_outputs_max;
    uint32_t n_outputs_max_per_seq;
    int32_t n_threads;
    int32_t n_threads_batch;
    enum llama_context_type ctx_type;
    enum llama_rope_scaling_type rope_scaling_type;
    enum llama_pooling_type pooling_type;
    enum llama_attention_type attention_type;
    enum llama_flash_attn_type flash_attn_type;
    float rope_freq_base;
    float rope_freq_scale;
    float yarn_ext_factor;
    float yarn_attn_factor;
    float yarn_beta_fast;
    float yarn_beta_slow;
    uint32_t yarn_orig_ctx;
    float defrag_thold;
    ggml_backend_sched_eval_callback cb_eval;
    void *cb_eval_user_data;
    enum ggml_type type_k;
    enum ggml_type type_v;
    ggml_abort_callback abort_callback;
    void *abort_callback_data;
    bool embeddings;
    bool offload_kqv;
    bool no_perf;
    bool op_offload;
    bool swa_full;
    bool kv_unified;
    struct llama_sampler_seq_config *samplers;
    size_t n_samplers;
    struct llama_context *ctx_other; /* the target, for a draft that shares its tensors or memory */
};
