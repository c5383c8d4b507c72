#include "shim.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <stdlib.h>
#include <string.h>

#if defined(__unix__) || defined(__APPLE__)
#include <signal.h>
#include <unistd.h>
#endif

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

struct ggml_context * shim_context_new(size_t mem_size) {
    struct ggml_init_params params = { mem_size, NULL, true };
    return ggml_init(params);
}

int64_t shim_tensor_ne(const struct ggml_tensor * t, int dim) { return t->ne[dim]; }
size_t  shim_tensor_nb(const struct ggml_tensor * t, int dim) { return t->nb[dim]; }
int     shim_tensor_type(const struct ggml_tensor * t) { return (int) t->type; }
int     shim_tensor_op(const struct ggml_tensor * t) { return (int) t->op; }
bool    shim_tensor_is_input(const struct ggml_tensor * t) { return (t->flags & GGML_TENSOR_FLAG_INPUT) != 0; }

const char * shim_tensor_op_name(const struct ggml_tensor * t) {
    if (shim_is_paged_attention(t)) {
        return "PAGED_ATTENTION";
    }
    if (shim_is_select(t)) {
        return "SELECT_KEYS";
    }
    if (shim_is_gelu(t)) {
        return t->src[1] != NULL ? "GEGLU_TANH" : "GELU_TANH";
    }
    return shim_is_convolve(t) ? "CONVOLVE" : ggml_op_desc(t);
}

float shim_tensor_op_param(const struct ggml_tensor * t, int index) {
    float value;
    memcpy(&value, t->op_params + index, sizeof(value));
    return value;
}

bool shim_tensor_is_allocated(const struct ggml_tensor * t) {
    return t->buffer != NULL || (t->view_src != NULL && t->view_src->buffer != NULL);
}

struct ggml_tensor * shim_tensor_src(const struct ggml_tensor * t, int index) { return t->src[index]; }
struct ggml_tensor * shim_tensor_view_src(const struct ggml_tensor * t) { return t->view_src; }

ggml_backend_buffer_t shim_tensor_buffer(const struct ggml_tensor * t) {
    return t->view_src ? t->view_src->buffer : t->buffer;
}

void shim_tensor_set_buffer(struct ggml_tensor * t, ggml_backend_buffer_t buffer) { t->buffer = buffer; }

// Whether a tensor that is no view has rows or states that are kept between graphs. Inputs have none, wherever they lie.
static bool is_stored(const struct ggml_tensor * t) {
    if (t->buffer == NULL || t->buffer->usage != GGML_BACKEND_BUFFER_USAGE_ANY || t->flags & GGML_TENSOR_FLAG_INPUT) {
        return false;
    }
    ggml_backend_dev_t device = ggml_backend_buft_get_device(t->buffer->buft);
    return device != NULL && ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU;
}

void shim_view_move(struct ggml_tensor * t, int64_t bytes) {
    t->view_offs += bytes;
    if (t->data != NULL) {
        t->data = (char *) t->data + bytes;
    }
}

size_t shim_view_offset(const struct ggml_tensor * t) { return t->view_offs; }

void shim_view_in_buffer(struct ggml_tensor * t) {
    const struct ggml_tensor * of = t->view_src;
    if (of == NULL || t->buffer != NULL || of->buffer == NULL) {
        return;
    }
    if (of->buffer->usage != GGML_BACKEND_BUFFER_USAGE_WEIGHTS && !is_stored(of)) {
        return;
    }
    if (of->data != NULL) {
        ggml_backend_view_init(t);
    } else {
        t->buffer = of->buffer;
    }
}

bool shim_tensor_in_host_memory(const struct ggml_tensor * t) {
    const struct ggml_tensor * base = t->view_src ? t->view_src : t;
    return base->buffer != NULL && t->data != NULL && ggml_backend_buffer_is_host(base->buffer);
}

void * shim_tensor_data(const struct ggml_tensor * t) { return t->data; }
int    shim_max_src(void) { return GGML_MAX_SRC; }

struct ggml_threadpool * shim_threadpool_new(int n_threads, uint32_t poll) {
    struct ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    params.poll = poll;
    return ggml_threadpool_new(&params);
}

int shim_graph_stored(struct ggml_cgraph * graph, ggml_backend_buffer_t * buffers, int max) {
    int n = 0;
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        const struct ggml_tensor * node = ggml_graph_node(graph, i);
        for (int at = -1; at < GGML_MAX_SRC; at++) {
            const struct ggml_tensor * t = at < 0 ? node : node->src[at];
            const struct ggml_tensor * base = t != NULL && t->view_src != NULL ? t->view_src : t;
            if (base == NULL || !is_stored(base)) {
                continue;
            }
            int known = 0;
            while (known < n && buffers[known] != base->buffer) {
                known++;
            }
            if (known == n && n < max) {
                buffers[n++] = base->buffer;
            }
        }
    }
    return n;
}

enum ggml_status shim_graph_compute_range(ggml_backend_t backend, struct ggml_cgraph * graph, int from, int to) {
    struct ggml_cgraph view = ggml_graph_view(graph, from, to);
    return ggml_backend_graph_compute(backend, &view);
}

bool shim_backend_set_n_threads(ggml_backend_t backend, int n_threads) {
    ggml_backend_dev_t device = ggml_backend_get_device(backend);
    ggml_backend_reg_t reg = device ? ggml_backend_dev_backend_reg(device) : NULL;
    if (reg == NULL) {
        return false;
    }
    ggml_backend_set_n_threads_t set =
        (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    if (set == NULL) {
        return false;
    }
    set(backend, n_threads);
    return true;
}

static struct ggml_backend_dev_caps caps(ggml_backend_dev_t device) {
    struct ggml_backend_dev_props props;
    memset(&props, 0, sizeof(props));
    ggml_backend_dev_get_props(device, &props);
    return props.caps;
}

bool shim_device_takes_host_ptr(ggml_backend_dev_t device) {
    return caps(device).buffer_from_host_ptr && device->iface.buffer_from_host_ptr != NULL;
}

bool shim_device_copies_async(ggml_backend_dev_t device) {
    const struct ggml_backend_dev_caps of = caps(device);
    return of.async && of.host_buffer && of.events;
}

bool shim_backend_copies_async(ggml_backend_t backend) { return backend->iface.cpy_tensor_async != NULL; }

int shim_backend_api_version(ggml_backend_reg_t reg) { return reg->api_version; }
int shim_core_api_version(void) { return GGML_BACKEND_API_VERSION; }

bool shim_dequantize(int type, const void * from, float * to, int64_t n) {
    const struct ggml_type_traits * traits = ggml_get_type_traits((enum ggml_type) type);
    if (!traits || !traits->to_float) {
        return false;
    }
    traits->to_float(from, to, n);
    return true;
}

void shim_buffer_zero(ggml_backend_buffer_t buffer) {
#if defined(__linux__)
    if (ggml_backend_buffer_is_host(buffer)) {
        char *       base  = ggml_backend_buffer_get_base(buffer);
        const size_t size  = ggml_backend_buffer_get_size(buffer);
        const size_t page  = (size_t) sysconf(_SC_PAGESIZE);
        const size_t start = ((size_t) base + page - 1) / page * page - (size_t) base;
        if (size > start + page) {
            const size_t whole = (size - start) / page * page;
            // Pages of private memory that are given back read as zeros when they are next touched.
            if (madvise(base + start, whole, MADV_DONTNEED) == 0) {
                memset(base, 0, start);
                memset(base + start + whole, 0, size - start - whole);
                return;
            }
        }
    }
#endif
    ggml_backend_buffer_clear(buffer, 0);
}

#if defined(__unix__) || defined(__APPLE__)
// Only what a handler may call.
static void end_with_message(int signal) {
    static const char message[] = "error: a mapped file was cut short, or its disk failed, while it was read (bus error)\n";
    (void) signal;
    ssize_t written = write(STDERR_FILENO, message, sizeof(message) - 1);
    (void) written;
    _exit(1);
}
#endif

void shim_report_bus_errors(void) {
#if defined(__unix__) || defined(__APPLE__)
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = end_with_message;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
#endif
}

// The lowest compute capability that a backend was built for, 100 * major + 10 * minor; 0 if it does not say.
static long lowest_arch(ggml_backend_reg_t reg) {
    ggml_backend_get_features_t features =
        (ggml_backend_get_features_t) ggml_backend_reg_get_proc_address(reg, "ggml_backend_get_features");
    long lowest = 0;
    for (struct ggml_backend_feature * f = features ? features(reg) : NULL; f && f->name; f++) {
        for (const char * at = strcmp(f->name, "ARCHS") == 0 ? f->value : ""; *at;) {
            char * end;
            const long arch = strtol(at, &end, 10);
            if (arch > 0 && (lowest == 0 || arch < lowest)) {
                lowest = arch;
            }
            at = end > at ? end : at + 1;
        }
    }
    return lowest;
}

void shim_product_in_bf16(struct ggml_tensor * product) {
    const struct ggml_tensor * matrix = product->src[0];
    ggml_backend_buffer_t buffer = shim_tensor_buffer(matrix);
    ggml_backend_dev_t device = buffer ? ggml_backend_buft_get_device(buffer->buft) : NULL;
    ggml_backend_reg_t reg = device ? ggml_backend_dev_backend_reg(device) : NULL;
    if (reg == NULL || strcmp(ggml_backend_reg_name(reg), "CUDA") != 0 || lowest_arch(reg) < 800) {
        return;
    }
    ggml_prec_set_acc(product, GGML_PREC_BF16);
}
