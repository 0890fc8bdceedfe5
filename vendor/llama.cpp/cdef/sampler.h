/* Samplers: each edits a candidate array in place; a chain runs them in turn and owns them. */

typedef struct llama_token_data {
    llama_token id;
    float logit;
    float p;
} llama_token_data;

typedef struct llama_token_data_array {
    llama_token_data *data; /* a sampler may point it at an array of its own */
    size_t size;
    int64_t selected; /* index into data, not a token id */
    bool sorted;
} llama_token_data_array;

typedef struct llama_sampler_chain_params {
    bool no_perf;
} llama_sampler_chain_params;

struct llama_sampler_chain_params llama_sampler_chain_default_params(void);
struct llama_sampler *llama_sampler_chain_init(struct llama_sampler_chain_params params);
void llama_sampler_chain_add(struct llama_sampler *chain, struct llama_sampler *smpl);

void llama_sampler_accept(struct llama_sampler *smpl, llama_token token);
void llama_sampler_apply(struct llama_sampler *smpl, llama_token_data_array *cur_p);
void llama_sampler_free(struct llama_sampler *smpl);

struct llama_sampler *llama_sampler_init_greedy(void);
struct llama_sampler *llama_sampler_init_dist(uint32_t seed);
struct llama_sampler *llama_sampler_init_top_k(int32_t k);
struct llama_sampler *llama_sampler_init_top_p(float p, size_t min_keep);
struct llama_sampler *llama_sampler_init_min_p(float p, size_t min_keep);
struct llama_sampler *llama_sampler_init_typical(float p, size_t min_keep);
struct llama_sampler *llama_sampler_init_temp(float t);
struct llama_sampler *llama_sampler_init_temp_ext(float t, float delta, float exponent);
struct llama_sampler *llama_sampler_init_xtc(float p, float t, size_t min_keep, uint32_t seed);
struct llama_sampler *llama_sampler_init_top_n_sigma(float n);
struct llama_sampler *llama_sampler_init_mirostat(int32_t n_vocab, uint32_t seed, float tau, float eta, int32_t m);
struct llama_sampler *llama_sampler_init_mirostat_v2(uint32_t seed, float tau, float eta);
/* NULL when the grammar does not parse. */
struct llama_sampler *llama_sampler_init_grammar(const struct llama_vocab *vocab, const char *grammar_str,
                                                 const char *grammar_root);
struct llama_sampler *llama_sampler_init_penalties(int32_t n_vocab, int32_t penalty_last_n, float penalty_repeat,
                                                   float penalty_freq, float penalty_present);
struct llama_sampler *llama_sampler_init_dry(const struct llama_vocab *vocab, float dry_multiplier, float dry_base,
                                             int32_t dry_allowed_length, int32_t dry_penalty_last_n,
                                             const char **seq_breakers, size_t num_breakers);

/* Samplers that run inside the evaluation, one chain per sequence; the caller keeps owning the chain. False: this one
   cannot. NULL takes it away. Rows of logits are not copied to the host where such a chain chose. */
bool llama_set_sampler(struct llama_context *ctx, llama_seq_id seq_id, struct llama_sampler *smpl);
/* i is an index into the batch. -1: nothing was chosen. */
llama_token llama_get_sampled_token_ith(struct llama_context *ctx, int32_t i);
/* What a chain left over: ids and logits in the same order, which need not be a sorted one. */
float *llama_get_sampled_logits_ith(struct llama_context *ctx, int32_t i);
uint32_t llama_get_sampled_logits_count_ith(struct llama_context *ctx, int32_t i);
