/* Compute devices, and the CPU features that this build of the library uses. */

enum ggml_backend_dev_type {
    GGML_BACKEND_DEVICE_TYPE_CPU,
    GGML_BACKEND_DEVICE_TYPE_GPU,   /* memory of its own */
    GGML_BACKEND_DEVICE_TYPE_IGPU,  /* shares the host's memory */
    GGML_BACKEND_DEVICE_TYPE_ACCEL, /* helps the CPU: BLAS, AMX */
    GGML_BACKEND_DEVICE_TYPE_META   /* several devices taken as one */
};

size_t ggml_backend_dev_count(void);
ggml_backend_dev_t ggml_backend_dev_get(size_t index);
const char *ggml_backend_dev_name(ggml_backend_dev_t device);
const char *ggml_backend_dev_description(ggml_backend_dev_t device);
void ggml_backend_dev_memory(ggml_backend_dev_t device, size_t *free, size_t *total);
enum ggml_backend_dev_type ggml_backend_dev_type(ggml_backend_dev_t device);
ggml_backend_reg_t ggml_backend_dev_backend_reg(ggml_backend_dev_t device);
const char *ggml_backend_reg_name(ggml_backend_reg_t reg);

/* Fixed when the library is compiled: not what the machine has, but what the kernels may use. */
int ggml_cpu_has_sse3(void);
int ggml_cpu_has_ssse3(void);
int ggml_cpu_has_avx(void);
int ggml_cpu_has_avx_vnni(void);
int ggml_cpu_has_avx2(void);
int ggml_cpu_has_bmi2(void);
int ggml_cpu_has_f16c(void);
int ggml_cpu_has_fma(void);
int ggml_cpu_has_avx512(void);
int ggml_cpu_has_avx512_vbmi(void);
int ggml_cpu_has_avx512_vnni(void);
int ggml_cpu_has_avx512_bf16(void);
int ggml_cpu_has_amx_int8(void);
int ggml_cpu_has_neon(void);
int ggml_cpu_has_arm_fma(void);
int ggml_cpu_has_fp16_va(void);
int ggml_cpu_has_dotprod(void);
int ggml_cpu_has_matmul_int8(void);
int ggml_cpu_has_sve(void);
int ggml_cpu_has_sme(void);
int ggml_cpu_has_riscv_v(void);
int ggml_cpu_has_vsx(void);
int ggml_cpu_has_wasm_simd(void);
int ggml_cpu_has_llamafile(void);

/* The backends that a context computes on, and the CPU's plain kernels (no tiles, no split of the KV memory). */
int ggml_backend_sched_get_n_backends(ggml_backend_sched_t sched);
ggml_backend_t ggml_backend_sched_get_backend(ggml_backend_sched_t sched, int i);
bool ggml_backend_is_cpu(ggml_backend_t backend);
void ggml_backend_cpu_set_use_ref(ggml_backend_t backend_cpu, bool use_ref);
