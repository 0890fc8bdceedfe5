/* The memory of a context (attention cells, recurrent states), per sequence, over positions [p0, p1). */

/* False: this kind of memory cannot cut there, and nothing changed. */
bool llama_memory_seq_rm(llama_memory_t mem, llama_seq_id seq_id, llama_pos p0, llama_pos p1);
/* Moves the positions from p0 on; aborts where llama_memory_can_shift says no. */
void llama_memory_seq_add(llama_memory_t mem, llama_seq_id seq_id, llama_pos p0, llama_pos p1, llama_pos delta);
llama_pos llama_memory_seq_pos_max(llama_memory_t mem, llama_seq_id seq_id); /* -1: empty */
/* Of what sliding-window layers hold, where a model has them. */
llama_pos llama_memory_seq_pos_min(llama_memory_t mem, llama_seq_id seq_id);
bool llama_memory_can_shift(llama_memory_t mem);
