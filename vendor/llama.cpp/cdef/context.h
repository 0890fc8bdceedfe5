/* A context: the memory, the compute buffers and the outputs of a model in use. */

/* struct llama_context_params: context_params.h, the one layout that differs between the carriers. */
struct llama_context_params llama_context_default_params(void);
struct llama_context *llama_init_from_model(struct llama_model *model, struct llama_context_params params);
void llama_free(struct llama_context *ctx);

uint32_t llama_n_ctx_seq(const struct llama_context *ctx);
uint32_t llama_n_batch(const struct llama_context *ctx);
uint32_t llama_n_ubatch(const struct llama_context *ctx);
uint32_t llama_n_seq_max(const struct llama_context *ctx);
uint32_t llama_n_rs_seq(const struct llama_context *ctx);
llama_memory_t llama_get_memory(const struct llama_context *ctx);

void llama_set_causal_attn(struct llama_context *ctx, bool causal_attn);
void llama_synchronize(struct llama_context *ctx);

/* Outputs live inside the context until its next evaluation; the calls wait for the work to end. */
float *llama_get_logits(struct llama_context *ctx);
