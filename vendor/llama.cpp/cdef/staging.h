/* Calls that upstream exports from C++ only (src/llama-ext.h), so they carry their Itanium-mangled names. */

/* Keep the hidden state after the last layer: of every batch token, or (masked) of the output rows only. */
void _Z26llama_set_embeddings_nextnP13llama_contextbb(struct llama_context *ctx, bool value, bool masked);
float *_Z26llama_get_embeddings_nextnP13llama_context(struct llama_context *ctx);
/* Which NextN block an MTP context runs, counted from the first. */
void _Z28llama_set_nextn_layer_offsetP13llama_contexti(struct llama_context *ctx, int32_t offset);
/* Keep the input of one layer, one row per batch token. */
void _Z30llama_set_embeddings_layer_inpP13llama_contextjb(struct llama_context *ctx, uint32_t lid, bool value);
float *_Z30llama_get_embeddings_layer_inpP13llama_contextj(struct llama_context *ctx, uint32_t lid);
/* The target context a draft context leans on, or NULL. */
struct llama_context *_Z19llama_get_ctx_otherP13llama_context(struct llama_context *ctx);
/* The scheduler of a context, which knows the backends it runs on. */
ggml_backend_sched_t _ZNK13llama_context9get_schedEv(const struct llama_context *self);
