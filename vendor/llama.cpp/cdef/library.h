/* Questions about the library itself, answerable without a model. */

const char *llama_version(void);
const char *llama_print_system_info(void);
const char *ggml_version(void);

void llama_backend_init(void);

size_t llama_max_devices(void);
size_t llama_max_tensor_buft_overrides(void);
bool llama_supports_mmap(void);
bool llama_supports_mlock(void);
bool llama_supports_gpu_offload(void);
bool llama_supports_rpc(void);
