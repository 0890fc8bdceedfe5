/* Where the library's messages go. Both setters are global and unsynchronised. */

enum ggml_log_level {
    GGML_LOG_LEVEL_NONE = 0,
    GGML_LOG_LEVEL_DEBUG = 1,
    GGML_LOG_LEVEL_INFO = 2,
    GGML_LOG_LEVEL_WARN = 3,
    GGML_LOG_LEVEL_ERROR = 4,
    GGML_LOG_LEVEL_CONT = 5 /* goes on with the message before it */
};

typedef void (*ggml_log_callback)(enum ggml_log_level level, const char *text, void *user_data);

void llama_log_set(ggml_log_callback log_callback, void *user_data);
void llama_log_get(ggml_log_callback *log_callback, void **user_data);
void ggml_log_set(ggml_log_callback log_callback, void *user_data);
void ggml_log_get(ggml_log_callback *log_callback, void **user_data);
