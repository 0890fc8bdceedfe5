/* A context: the memory, the compute buffers and the outputs of a model in use. */

/* struct llama_context_params: context_params.h, the one layout that differs between the carriers. */
struct llama_context_params llama_context_default_params(void);
struct llama_context *llama_init_from_model(struct llama_model *model, struct llama_context_params params);
void llama_free(struct llama_context *ctx);

uint32_t llama_n_ctx(const struct llama_context *ctx);
uint32_t llama_n_ctx_seq(const struct llama_context *ctx);
uint32_t llama_n_batch(const struct llama_context *ctx);
uint32_t llama_n_ubatch(const struct llama_context *ctx);
uint32_t llama_n_seq_max(const struct llama_context *ctx);
uint32_t llama_n_rs_seq(const struct llama_context *ctx);
const struct llama_model *llama_get_model(const struct llama_context *ctx);
llama_memory_t llama_get_memory(const struct llama_context *ctx);
enum llama_pooling_type llama_pooling_type(const struct llama_context *ctx);

void llama_set_n_threads(struct llama_context *ctx, int32_t n_threads, int32_t n_threads_batch);
int32_t llama_n_threads(struct llama_context *ctx);
int32_t llama_n_threads_batch(struct llama_context *ctx);
void llama_set_embeddings(struct llama_context *ctx, bool embeddings);
void llama_set_causal_attn(struct llama_context *ctx, bool causal_attn);
bool llama_get_causal_attn(const struct llama_context *ctx);
void llama_set_abort_callback(struct llama_context *ctx, ggml_abort_callback abort_callback, void *abort_callback_data);
void llama_synchronize(struct llama_context *ctx);

/* Outputs live inside the context until its next evaluation; the calls wait for the work to end. */
float *llama_get_logits(struct llama_context *ctx);
float *llama_get_logits_ith(struct llama_context *ctx, int32_t i);
float *llama_get_embeddings(struct llama_context *ctx);
float *llama_get_embeddings_ith(struct llama_context *ctx, int32_t i);
float *llama_get_embeddings_seq(struct llama_context *ctx, llama_seq_id seq_id);

/* What a sampler that runs inside the graph left behind, per output row. */
bool llama_set_sampler(struct llama_context *ctx, llama_seq_id seq_id, struct llama_sampler *smpl);
llama_token llama_get_sampled_token_ith(struct llama_context *ctx, int32_t i);
float *llama_get_sampled_probs_ith(struct llama_context *ctx, int32_t i);
uint32_t llama_get_sampled_probs_count_ith(struct llama_context *ctx, int32_t i);
float *llama_get_sampled_logits_ith(struct llama_context *ctx, int32_t i);
uint32_t llama_get_sampled_logits_count_ith(struct llama_context *ctx, int32_t i);
llama_token *llama_get_sampled_candidates_ith(struct llama_context *ctx, int32_t i);
uint32_t llama_get_sampled_candidates_count_ith(struct llama_context *ctx, int32_t i);

struct llama_perf_context_data {
    double t_start_ms;
    double t_load_ms;
    double t_p_eval_ms;
    double t_eval_ms;
    int32_t n_p_eval;
    int32_t n_eval;
    int32_t n_reused;
};

struct llama_perf_context_data llama_perf_context(const struct llama_context *ctx);
void llama_perf_context_reset(struct llama_context *ctx);
