/* Saving and restoring the memory of a sequence. */

typedef uint32_t llama_state_seq_flags;

#define LLAMA_STATE_SEQ_FLAGS_NONE 0
/* Only what cannot be cut: recurrent states and sliding-window cells. */
#define LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY 1
/* Keep the bytes on the device; the next such save of the sequence overwrites them. */
#define LLAMA_STATE_SEQ_FLAGS_ON_DEVICE 2

/* All answer with a byte count; 0 is failure. */
size_t llama_state_seq_get_size_ext(struct llama_context *ctx, llama_seq_id seq_id, llama_state_seq_flags flags);
size_t llama_state_seq_get_data_ext(struct llama_context *ctx, uint8_t *dst, size_t size, llama_seq_id seq_id,
                                    llama_state_seq_flags flags);
size_t llama_state_seq_set_data_ext(struct llama_context *ctx, const uint8_t *src, size_t size,
                                    llama_seq_id dest_seq_id, llama_state_seq_flags flags);
