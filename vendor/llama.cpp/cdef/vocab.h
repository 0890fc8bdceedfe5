/* Tokens, the text they stand for, and turning one into the other. */

enum llama_vocab_type {
    LLAMA_VOCAB_TYPE_NONE = 0,
    LLAMA_VOCAB_TYPE_SPM = 1,
    LLAMA_VOCAB_TYPE_BPE = 2,
    LLAMA_VOCAB_TYPE_WPM = 3,
    LLAMA_VOCAB_TYPE_UGM = 4,
    LLAMA_VOCAB_TYPE_RWKV = 5,
    LLAMA_VOCAB_TYPE_PLAMO2 = 6,
    LLAMA_VOCAB_TYPE_TEST = 7,
    LLAMA_VOCAB_TYPE_PLAMO3 = 8
};

enum llama_token_attr {
    LLAMA_TOKEN_ATTR_UNDEFINED = 0,
    LLAMA_TOKEN_ATTR_UNKNOWN = 1,
    LLAMA_TOKEN_ATTR_UNUSED = 2,
    LLAMA_TOKEN_ATTR_NORMAL = 4,
    LLAMA_TOKEN_ATTR_CONTROL = 8,
    LLAMA_TOKEN_ATTR_USER_DEFINED = 16,
    LLAMA_TOKEN_ATTR_BYTE = 32,
    LLAMA_TOKEN_ATTR_NORMALIZED = 64,
    LLAMA_TOKEN_ATTR_LSTRIP = 128,
    LLAMA_TOKEN_ATTR_RSTRIP = 256,
    LLAMA_TOKEN_ATTR_SINGLE_WORD = 512
};

enum llama_vocab_type llama_vocab_type(const struct llama_vocab *vocab);
int32_t llama_vocab_n_tokens(const struct llama_vocab *vocab);

/* An id outside the vocabulary throws through C and ends the process. */
const char *llama_vocab_get_text(const struct llama_vocab *vocab, llama_token token);
enum llama_token_attr llama_vocab_get_attr(const struct llama_vocab *vocab, llama_token token);
bool llama_vocab_is_eog(const struct llama_vocab *vocab, llama_token token);

llama_token llama_vocab_bos(const struct llama_vocab *vocab);
llama_token llama_vocab_eos(const struct llama_vocab *vocab);
llama_token llama_vocab_eot(const struct llama_vocab *vocab);
llama_token llama_vocab_sep(const struct llama_vocab *vocab);
llama_token llama_vocab_nl(const struct llama_vocab *vocab);
llama_token llama_vocab_pad(const struct llama_vocab *vocab);
llama_token llama_vocab_mask(const struct llama_vocab *vocab);
bool llama_vocab_get_add_bos(const struct llama_vocab *vocab);
bool llama_vocab_get_add_eos(const struct llama_vocab *vocab);
const llama_token *llama_vocab_get_suppress_tokens(const struct llama_vocab *vocab, int32_t *n_suppress_tokens);

/* All three: a negative answer is minus the room that was needed. */
int32_t llama_tokenize(const struct llama_vocab *vocab, const char *text, int32_t text_len, llama_token *tokens,
                       int32_t n_tokens_max, bool add_special, bool parse_special);
int32_t llama_token_to_piece(const struct llama_vocab *vocab, llama_token token, char *buf, int32_t length,
                             int32_t lstrip, bool special);
int32_t llama_detokenize(const struct llama_vocab *vocab, const llama_token *tokens, int32_t n_tokens, char *text,
                         int32_t text_len_max, bool remove_special, bool unparse_special);
