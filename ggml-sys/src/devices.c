// Devices of ggml's registry that are to say or give less than they would. Their tables of functions are
// replaced in place, before any backend or buffer of theirs is made, by one thread.
#include "shim.h"

#include "ggml-backend-impl.h"

static bool (*remote_supports_op)(ggml_backend_dev_t device, const struct ggml_tensor * op);

static bool supports_ops_of_ggml(ggml_backend_dev_t device, const struct ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_MAP_CUSTOM1:
        case GGML_OP_MAP_CUSTOM2:
        case GGML_OP_MAP_CUSTOM3:
        case GGML_OP_CUSTOM:
            return false;
        default:
            return remote_supports_op(device, op);
    }
}

void shim_device_refuse_own_ops(ggml_backend_dev_t device) {
    if (device->iface.supports_op != supports_ops_of_ggml) {
        // All remote devices have the same.
        remote_supports_op = device->iface.supports_op;
        device->iface.supports_op = supports_ops_of_ggml;
    }
}

#define MAX_LIMITED 16

struct limited {
    ggml_backend_dev_t         device;
    ggml_backend_buffer_type_t type;
    size_t                     limit;
    size_t                     used;
    void                  (*get_memory)(ggml_backend_dev_t device, size_t * free, size_t * total);
    ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t type, size_t size);
    void                  (*free_buffer)(ggml_backend_buffer_t buffer);
};

static struct limited limited[MAX_LIMITED];
static int            n_limited;

static struct limited * limited_device(ggml_backend_dev_t device) {
    for (int i = 0; i < n_limited; i++) {
        if (limited[i].device == device) {
            return &limited[i];
        }
    }
    return NULL;
}

static struct limited * limited_type(ggml_backend_buffer_type_t type) {
    for (int i = 0; i < n_limited; i++) {
        if (limited[i].type == type) {
            return &limited[i];
        }
    }
    return NULL;
}

static void limited_get_memory(ggml_backend_dev_t device, size_t * free, size_t * total) {
    const struct limited * of = limited_device(device);
    of->get_memory(device, free, total);
    const size_t left = of->limit - of->used;
    *free  = *free < left ? *free : left;
    *total = *total < of->limit ? *total : of->limit;
}

static void limited_free_buffer(ggml_backend_buffer_t buffer) {
    struct limited * of = limited_type(buffer->buft);
    of->used -= buffer->size;
    if (of->free_buffer != NULL) {
        of->free_buffer(buffer);
    }
}

static ggml_backend_buffer_t limited_alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    struct limited * of = limited_type(type);
    if (size > of->limit - of->used) {
        return NULL;
    }
    ggml_backend_buffer_t buffer = of->alloc_buffer(type, size);
    if (buffer == NULL) {
        return NULL;
    }
    // A buffer may be larger than what was asked for.
    if (buffer->size > of->limit - of->used) {
        ggml_backend_buffer_free(buffer);
        return NULL;
    }
    of->free_buffer = buffer->iface.free_buffer;
    of->used += buffer->size;
    buffer->iface.free_buffer = limited_free_buffer;
    return buffer;
}

bool shim_device_limit_memory(ggml_backend_dev_t device, size_t limit) {
    if (n_limited == MAX_LIMITED || limited_device(device) != NULL) {
        return false;
    }
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(device);
    limited[n_limited++] = (struct limited) {
        .device = device, .type = type, .limit = limit, .used = 0,
        .get_memory = device->iface.get_memory, .alloc_buffer = type->iface.alloc_buffer, .free_buffer = NULL,
    };
    device->iface.get_memory = limited_get_memory;
    type->iface.alloc_buffer = limited_alloc_buffer;
    type->iface.alloc_buffer_n = NULL;
    return true;
}
