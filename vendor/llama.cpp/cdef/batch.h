/* What one evaluation works on: the plain arrays, and the checked builder. */

typedef struct llama_batch {
    int32_t n_tokens;
    llama_token *token;
    float *embd;
    llama_pos *pos;
    int32_t *n_seq_id;
    llama_seq_id **seq_id;
    int8_t *logits; /* nonzero: an output row is wanted */
} llama_batch;

struct llama_batch llama_batch_init(int32_t n_tokens, int32_t embd, int32_t n_seq_max);
void llama_batch_free(struct llama_batch batch);

/* 0 done; 1 no room in the memory; 2 stopped by the abort callback; -1 invalid batch; below -1 fatal. */
int32_t llama_encode(struct llama_context *ctx, struct llama_batch batch);
int32_t llama_decode(struct llama_context *ctx, struct llama_batch batch);

struct llama_batch_ext;

enum llama_process_type {
    LLAMA_PROCESS_TYPE_ENCODE,
    LLAMA_PROCESS_TYPE_DECODE
};

struct llama_batch_ext *llama_batch_ext_init(struct llama_context *ctx);
void llama_batch_ext_free(struct llama_batch_ext *batch);
void llama_batch_ext_clear(struct llama_batch_ext *batch);

/* The index of the new entry, or -1 full, -2 bad token or embedding, -3 bad sequence. */
int32_t llama_batch_ext_add(struct llama_batch_ext *batch, llama_seq_id seq_id);
int32_t llama_batch_ext_add_token(struct llama_batch_ext *batch, llama_seq_id seq_id, llama_token id);

bool llama_batch_ext_set_output_logits(struct llama_batch_ext *batch, int32_t idx, bool value);
bool llama_batch_ext_set_pos(struct llama_batch_ext *batch, int32_t idx, const llama_pos *pos);

int32_t llama_process(struct llama_context *ctx, enum llama_process_type type, struct llama_batch_ext *batch);
