// A backend library for tests: a device `Test0` that computes on the processor, in memory that the scheduler takes for
// another device's. MADE_UP_LACKS lists what it claims not to support: operations by ggml's names, each followed by
// the type of its result or of its first source if only that one is meant (`SET_ROWS:q8_0,FLASH_ATTN_EXT`).
// MADE_UP_LOADS says how weights get there: `async` (copies from memory of its own kind are carried out as late as is
// allowed) or `in place` (it uses the host's memory).
// Attention over block tables (shim_device_attention of ggml-sys/src/attention.h) is computed by plain loops.
// MADE_UP_QUEUE makes it compute and copy on a thread of its own, as a GPU does, with the given latencies in microseconds: of a
// launch, of a copy, of a graph (`5,8,8000`). What it did is in the file MADE_UP_REPORT. With `COPY_ASYNC` in MADE_UP_LACKS it does not
// copy between its tensors by itself.
// MADE_UP_DEVICES=2 makes a second device `Test1` of the same kind; the report is of both together.
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"

#ifndef IDENTITY
#error "IDENTITY: what the library says it was built from"
#endif
const char bench_backend_identity[] = IDENTITY;
const int  bench_backend_reads_tables = 1;

#define MAX_DEVICES 2

static const char * const              names[MAX_DEVICES] = { "Test0", "Test1" };
static struct ggml_backend_device      devices[MAX_DEVICES];
static struct ggml_backend_buffer_type memories[MAX_DEVICES];
static struct ggml_backend_buffer_type pinned;

static int place_of(ggml_backend_dev_t dev) { return (int) (dev - devices); }

static bool loads(const char * way) {
    const char * chosen = getenv("MADE_UP_LOADS");
    return chosen != NULL && strcmp(chosen, way) == 0;
}

static ggml_backend_dev_t cpu(void) { return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); }

// Computing: all on the processor, and attention by block tables here.

static bool has_table(const struct ggml_tensor * t) { return t->op == GGML_OP_FLASH_ATTN_EXT && t->src[6] != NULL; }

static float param(const struct ggml_tensor * t, int at) {
    float value;
    memcpy(&value, t->op_params + at, sizeof(value));
    return value;
}

static const float * row_of(const struct ggml_tensor * t, int64_t slot, int64_t head, float * to) {
    const char * row = (const char *) t->data + slot * t->nb[1] + head * t->nb[2];
    if (t->type == GGML_TYPE_F32) {
        return (const float *) row;
    }
    ggml_get_type_traits(t->type)->to_float(row, to, t->ne[0]);
    return to;
}

// Without linear biases, which no test asks for.
static void attend_by_table(struct ggml_tensor * dst) {
    const struct ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2], * sinks = dst->src[4];
    const int32_t * queries = dst->src[5]->data, * table = dst->src[6]->data;
    const int64_t dk = k->ne[0], dv = v->ne[0], heads = q->ne[2], block = dst->op_params[4];
    const float scale = param(dst, 0), softcap = param(dst, 2);
    static bool was_said = false;
    if (!was_said) {
        GGML_LOG_WARN("made up: attention by a table of blocks of %lld\n", (long long) block);
        was_said = true;
    }
    GGML_ASSERT(param(dst, 1) == 0.0f && dst->src[3] == NULL);
    float * one = malloc(sizeof(float) * (size_t) (dk > dv ? dk : dv));
    double * sums = malloc(sizeof(double) * (size_t) dv);
    for (int64_t i = 0; i < q->ne[1]; i++) {
        const int32_t * query = queries + 4 * i;
        for (int64_t head = 0; head < heads; head++) {
            const float * x = (const float *) ((const char *) q->data + i * q->nb[1] + head * q->nb[2]);
            const int64_t kv_head = head / (heads / k->ne[2]);
            double top = sinks ? ((const float *) sinks->data)[head] : -INFINITY, total = sinks ? 1 : 0;
            memset(sums, 0, sizeof(double) * (size_t) dv);
            for (int64_t p = query[2]; p < query[3]; p++) {
                const int64_t slot = (int64_t) table[query[0] + p / block] * block + p % block;
                GGML_ASSERT(slot >= 0 && slot < k->ne[1]);
                const float * key = row_of(k, slot, kv_head, one);
                double score = 0;
                for (int64_t d = 0; d < dk; d++) {
                    score += (double) key[d] * x[d];
                }
                score *= scale;
                score = softcap > 0 ? softcap * tanh(score / softcap) : score;
                const double higher = score > top ? score : top, shrink = exp(top - higher), weight = exp(score - higher);
                const float * value = row_of(v, slot, kv_head, one);
                for (int64_t d = 0; d < dv; d++) {
                    sums[d] = sums[d] * shrink + weight * value[d];
                }
                total = total * shrink + weight;
                top = higher;
            }
            float * out = (float *) dst->data + (i * heads + head) * dv;
            for (int64_t d = 0; d < dv; d++) {
                out[d] = total > 0 ? (float) (sums[d] / total) : 0;
            }
        }
    }
    free(sums);
    free(one);
}

static enum ggml_status compute(ggml_backend_t processor, struct ggml_cgraph * graph) {
    const int n = ggml_graph_n_nodes(graph);
    for (int from = 0; from < n;) {
        int to = from;
        while (to < n && !has_table(ggml_graph_node(graph, to))) {
            to++;
        }
        struct ggml_cgraph part = ggml_graph_view(graph, from, to);
        const enum ggml_status status = to > from ? ggml_backend_graph_compute(processor, &part) : GGML_STATUS_SUCCESS;
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
        if (to < n) {
            attend_by_table(ggml_graph_node(graph, to));
        }
        from = to + 1;
    }
    return GGML_STATUS_SUCCESS;
}

// Memory

static const char * memory_name(ggml_backend_buffer_type_t type) { return names[place_of(type->device)]; }

static ggml_backend_buffer_t memory_alloc(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer != NULL) {
        buffer->buft = type;
    }
    return buffer;
}

static size_t memory_alignment(ggml_backend_buffer_type_t type) { (void) type; return 64; }

static const char * pinned_name(ggml_backend_buffer_type_t type) { (void) type; return "Test0_Host"; }
static ggml_backend_buffer_t pinned_alloc(ggml_backend_buffer_type_t type, size_t size) {
    GGML_LOG_WARN("made up: %zu bytes pinned\n", size);
    return memory_alloc(type, size);
}
static bool pinned_is_host(ggml_backend_buffer_type_t type) { (void) type; return true; }

// Copies that have begun: carried out when somebody waits for them, or their backend computes.

struct copy {
    ggml_backend_t       backend;
    struct ggml_tensor * to;
    const void *         from;
    size_t               offset;
    size_t               size;
};

#define MAX_COPIES 1024

static struct copy copies[MAX_COPIES];
static size_t      n_begun, n_done;

static void carry_out(size_t end) {
    for (; n_done < end; n_done++) {
        const struct copy * copy = &copies[n_done % MAX_COPIES];
        memcpy((char *) copy->to->data + copy->offset, copy->from, copy->size);
    }
}

static void carry_out_those_of(ggml_backend_t backend) {
    for (size_t i = n_done; i < n_begun; i++) {
        struct copy * copy = &copies[i % MAX_COPIES];
        if (copy->backend == backend) {
            memcpy((char *) copy->to->data + copy->offset, copy->from, copy->size);
            copy->size = 0;
        }
    }
}

static void backend_set_async(ggml_backend_t backend, struct ggml_tensor * to, const void * from, size_t offset, size_t size) {
    GGML_ASSERT(n_begun < n_done + MAX_COPIES);
    copies[n_begun++ % MAX_COPIES] = (struct copy) { backend, to, from, offset, size };
}

static void backend_synchronize(ggml_backend_t backend) { (void) backend; carry_out(n_begun); }

static ggml_backend_event_t event_new(ggml_backend_dev_t dev) {
    if (getenv("MADE_UP_QUEUE") == NULL && !loads("async")) {
        return NULL;
    }
    ggml_backend_event_t event = calloc(1, sizeof(*event));
    event->device = dev;
    return event;
}

static void event_free(ggml_backend_dev_t dev, ggml_backend_event_t event) { (void) dev; free(event); }
static void event_record(ggml_backend_t backend, ggml_backend_event_t event) { (void) backend; event->context = (void *) n_begun; }
static void event_synchronize(ggml_backend_dev_t dev, ggml_backend_event_t event);

// A queue, which a thread works off.

enum kind { SET, GET, COPY, COMPUTE };

struct command {
    enum kind            kind;
    struct ggml_tensor * tensor;
    struct ggml_tensor * from;
    void *               host;
    size_t               offset;
    size_t               size;
    struct ggml_cgraph * graph;
};

#define MAX_COMMANDS 4096

static struct queue {
    struct command            commands[MAX_COMMANDS];
    size_t                    n_queued, n_worked;
    pthread_mutex_t           lock;
    pthread_cond_t            moved;
    ggml_backend_t            cpu;
    const struct ggml_cgraph * last;
    uint64_t                  last_uid;
} queues[MAX_DEVICES];

static struct queue * queue_of(ggml_backend_t backend) { return &queues[place_of(backend->device)]; }

static long            latency[3]; // of a launch, a copy, a graph
static pthread_mutex_t count_lock = PTHREAD_MUTEX_INITIALIZER;
static long            n_graphs, n_sets, n_gets, n_copies, n_waits, bytes_set, bytes_got, n_replays, busy, idle;
// For how long two devices have computed at the same time, how many compute, and since when.
static long            both, n_computing, since;

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000L + time.tv_nsec / 1000;
}

static void pass_until(long end) {
    const long left = end - now();
    if (left > 0) {
        nanosleep(&(struct timespec) { left / 1000000, left % 1000000 * 1000 }, NULL);
    }
}

static void report(void) {
    const char * path = getenv("MADE_UP_REPORT");
    FILE *       file = path != NULL ? fopen(path, "w") : NULL;
    if (file != NULL) {
        fprintf(file,
            "{\"graphs\": %ld, \"replays\": %ld, \"sets\": %ld, \"gets\": %ld, \"copies\": %ld, \"waits\": %ld, \"bytes_set\": %ld, "
            "\"bytes_got\": %ld, \"busy\": %ld, \"idle\": %ld, \"both\": %ld}\n",
            n_graphs, n_replays, n_sets, n_gets, n_copies, n_waits, bytes_set, bytes_got, busy, idle, both);
        fclose(file);
    }
}

static void computes(int more) {
    pthread_mutex_lock(&count_lock);
    if (n_computing == 2) {
        both += now() - since;
    }
    n_computing += more;
    since = now();
    pthread_mutex_unlock(&count_lock);
}

static void work_off(struct queue * queue, const struct command * command) {
    const long began = now();
    switch (command->kind) {
        case SET:
            memcpy((char *) command->tensor->data + command->offset, command->host, command->size);
            pass_until(began + latency[1]);
            break;
        case GET:
            memcpy(command->host, (const char *) command->tensor->data + command->offset, command->size);
            pass_until(began + latency[1]);
            break;
        case COPY:
            memcpy(command->tensor->data, command->from->data, ggml_nbytes(command->tensor));
            pass_until(began + latency[1]);
            break;
        case COMPUTE:
            computes(1);
            compute(queue->cpu, command->graph);
            pass_until(began + latency[0] + latency[2]);
            computes(-1);
            break;
    }
    pthread_mutex_lock(&count_lock);
    switch (command->kind) {
        case SET:
            n_sets++, bytes_set += command->size;
            break;
        case GET:
            n_gets++, bytes_got += command->size;
            break;
        case COPY:
            n_copies++;
            break;
        case COMPUTE:
            n_graphs++;
            n_replays += command->graph == queue->last && command->graph->uid == queue->last_uid;
            queue->last = command->graph, queue->last_uid = command->graph->uid;
            break;
    }
    busy += now() - began;
    if (command->kind == COMPUTE) {
        report();
    }
    pthread_mutex_unlock(&count_lock);
}

static void * work(void * context) {
    struct queue * queue = context;
    pthread_mutex_lock(&queue->lock);
    while (true) {
        const long began = now();
        while (queue->n_worked == queue->n_queued) {
            pthread_cond_wait(&queue->moved, &queue->lock);
        }
        const long                   waited = now() - began;
        const struct command * const command = &queue->commands[queue->n_worked % MAX_COMMANDS];
        pthread_mutex_unlock(&queue->lock);
        // Waiting for the first graph of a run of steps is not idling between two.
        pthread_mutex_lock(&count_lock);
        idle += waited < 50000 ? waited : 0;
        pthread_mutex_unlock(&count_lock);
        work_off(queue, command);
        pthread_mutex_lock(&queue->lock);
        queue->n_worked++;
        pthread_cond_broadcast(&queue->moved);
    }
    return NULL;
}

static void put(ggml_backend_t backend, struct command command) {
    struct queue * queue = queue_of(backend);
    pthread_mutex_lock(&queue->lock);
    GGML_ASSERT(queue->n_queued < queue->n_worked + MAX_COMMANDS);
    queue->commands[queue->n_queued++ % MAX_COMMANDS] = command;
    pthread_cond_broadcast(&queue->moved);
    pthread_mutex_unlock(&queue->lock);
}

static void queue_set(ggml_backend_t backend, struct ggml_tensor * to, const void * from, size_t offset, size_t size) {
    put(backend, (struct command) { .kind = SET, .tensor = to, .host = (void *) from, .offset = offset, .size = size });
}

static void queue_get(ggml_backend_t backend, const struct ggml_tensor * from, void * to, size_t offset, size_t size) {
    put(backend, (struct command) { .kind = GET, .tensor = (struct ggml_tensor *) from, .host = to, .offset = offset, .size = size });
}

static bool queue_copy(ggml_backend_t from, ggml_backend_t to, const struct ggml_tensor * src, struct ggml_tensor * dst) {
    if (from != to) {
        return false;
    }
    put(to, (struct command) { .kind = COPY, .tensor = dst, .from = (struct ggml_tensor *) src });
    return true;
}

static enum ggml_status queue_compute(ggml_backend_t backend, struct ggml_cgraph * graph) {
    put(backend, (struct command) { .kind = COMPUTE, .graph = graph });
    return GGML_STATUS_SUCCESS;
}

static void wait_until(struct queue * queue, size_t end) {
    pthread_mutex_lock(&queue->lock);
    const bool waits = queue->n_worked < end;
    while (queue->n_worked < end) {
        pthread_cond_wait(&queue->moved, &queue->lock);
    }
    pthread_mutex_unlock(&queue->lock);
    pthread_mutex_lock(&count_lock);
    n_waits += waits;
    pthread_mutex_unlock(&count_lock);
}

static void queue_synchronize(ggml_backend_t backend) {
    struct queue * queue = queue_of(backend);
    pthread_mutex_lock(&queue->lock);
    const size_t end = queue->n_queued;
    pthread_mutex_unlock(&queue->lock);
    wait_until(queue, end);
}

static void queue_event_record(ggml_backend_t backend, ggml_backend_event_t event) {
    struct queue * queue = queue_of(backend);
    pthread_mutex_lock(&queue->lock);
    event->context = (void *) queue->n_queued;
    pthread_mutex_unlock(&queue->lock);
}

static void event_synchronize(ggml_backend_dev_t dev, ggml_backend_event_t event) {
    const size_t end = (size_t) event->context;
    if (getenv("MADE_UP_QUEUE") != NULL) {
        wait_until(&queues[place_of(dev)], end);
    } else {
        carry_out(end);
    }
}

static void start_queue(struct queue * queue, const char * latencies, ggml_backend_t cpu_backend) {
    pthread_t thread;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->moved, NULL);
    queue->cpu = cpu_backend;
    sscanf(latencies, "%ld,%ld,%ld", &latency[0], &latency[1], &latency[2]);
    pthread_create(&thread, NULL, work, queue);
    pthread_detach(thread);
}

// The backend

static const char * backend_name(ggml_backend_t backend) { return names[place_of(backend->device)]; }

static void backend_free(ggml_backend_t backend) {
    ggml_backend_free(backend->context);
    free(backend);
}

static enum ggml_status backend_compute(ggml_backend_t backend, struct ggml_cgraph * graph) {
    carry_out_those_of(backend);
    return compute(backend->context, graph);
}

static ggml_backend_t device_init(ggml_backend_dev_t dev, const char * params) {
    static ggml_guid guid = "made-up-backend";
    ggml_backend_t backend = calloc(1, sizeof(*backend));
    backend->guid = &guid;
    backend->device = dev;
    backend->context = ggml_backend_dev_init(cpu(), params);
    // Its own default is four threads, which wait for each other in loops.
    ggml_backend_cpu_set_n_threads(backend->context, 1);
    backend->iface.get_name = backend_name;
    backend->iface.free = backend_free;
    backend->iface.graph_compute = backend_compute;
    if (getenv("MADE_UP_QUEUE") != NULL) {
        struct queue * queue = queue_of(backend);
        if (queue->cpu == NULL) {
            start_queue(queue, getenv("MADE_UP_QUEUE"), ggml_backend_dev_init(cpu(), params));
            ggml_backend_cpu_set_n_threads(queue->cpu, 1);
        }
        backend->iface.set_tensor_async = queue_set;
        backend->iface.get_tensor_async = queue_get;
        const char * lacks = getenv("MADE_UP_LACKS");
        if (lacks == NULL || strstr(lacks, "COPY_ASYNC") == NULL) {
            backend->iface.cpy_tensor_async = queue_copy;
        }
        backend->iface.synchronize = queue_synchronize;
        backend->iface.event_record = queue_event_record;
        backend->iface.graph_compute = queue_compute;
    } else if (loads("async")) {
        backend->iface.set_tensor_async = backend_set_async;
        backend->iface.synchronize = backend_synchronize;
        backend->iface.event_record = event_record;
    }
    return backend;
}

// The device

static const char * device_name(ggml_backend_dev_t dev) { return names[place_of(dev)]; }
static const char * device_description(ggml_backend_dev_t dev) { (void) dev; return "made up"; }
static enum ggml_backend_dev_type device_type(ggml_backend_dev_t dev) { (void) dev; return GGML_BACKEND_DEVICE_TYPE_GPU; }

static void device_memory(ggml_backend_dev_t dev, size_t * free, size_t * total) {
    (void) dev;
    *free = (size_t) 16 << 30;
    *total = (size_t) 32 << 30;
}

static void device_props(ggml_backend_dev_t dev, struct ggml_backend_dev_props * props) {
    memset(props, 0, sizeof(*props));
    props->name = device_name(dev);
    props->description = device_description(dev);
    props->type = device_type(dev);
    device_memory(dev, &props->memory_free, &props->memory_total);
    const bool is_async = loads("async") && getenv("MADE_UP_QUEUE") == NULL;
    props->caps = (struct ggml_backend_dev_caps) {
        .async = is_async, .host_buffer = is_async, .events = is_async, .buffer_from_host_ptr = loads("in place"),
    };
}

static ggml_backend_buffer_type_t device_memory_type(ggml_backend_dev_t dev) { return &memories[place_of(dev)]; }

static ggml_backend_buffer_type_t device_pinned_type(ggml_backend_dev_t dev) {
    (void) dev;
    return loads("async") || getenv("MADE_UP_QUEUE") != NULL ? &pinned : NULL;
}

static ggml_backend_buffer_t device_in_place(ggml_backend_dev_t dev, void * ptr, size_t size, size_t largest) {
    (void) largest;
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(ptr, size);
    if (buffer != NULL) {
        buffer->buft = &memories[place_of(dev)];
        GGML_LOG_WARN("made up: %zu bytes in place\n", size);
    }
    return buffer;
}

static bool is_lacking(const struct ggml_tensor * op) {
    const char * lacks = getenv("MADE_UP_LACKS");
    char list[256];
    strncpy(list, lacks ? lacks : "", sizeof(list) - 1);
    list[sizeof(list) - 1] = 0;
    for (char * rest = NULL, * word = strtok_r(list, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        char * type = strchr(word, ':');
        if (type != NULL) {
            *type++ = 0;
        }
        const bool of_type = type == NULL || strcmp(type, ggml_type_name(op->type)) == 0
            || (op->src[0] != NULL && strcmp(type, ggml_type_name(op->src[0]->type)) == 0)
            || (op->src[1] != NULL && strcmp(type, ggml_type_name(op->src[1]->type)) == 0);
        if (strcmp(word, ggml_op_desc(op)) == 0 && of_type) {
            return true;
        }
    }
    return false;
}

static bool device_supports_op(ggml_backend_dev_t dev, const struct ggml_tensor * op) {
    (void) dev;
    return op->op != GGML_OP_CUSTOM && !is_lacking(op) && ggml_backend_dev_supports_op(cpu(), op);
}

static bool device_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t type) { return type == &memories[place_of(dev)]; }

// The library

static const char * reg_name(ggml_backend_reg_t reg) { (void) reg; return "Test"; }

static size_t reg_count(ggml_backend_reg_t reg) {
    (void) reg;
    const char * n = getenv("MADE_UP_DEVICES");
    return n != NULL && atoi(n) == MAX_DEVICES ? MAX_DEVICES : 1;
}

static ggml_backend_dev_t reg_device(ggml_backend_reg_t reg, size_t index) { (void) reg; return &devices[index]; }
static void * reg_address(ggml_backend_reg_t reg, const char * name) { (void) reg; (void) name; return NULL; }

ggml_backend_reg_t ggml_backend_init(void) {
    static struct ggml_backend_reg reg;
    reg.api_version = GGML_BACKEND_API_VERSION + API_OFFSET;
    reg.iface = (struct ggml_backend_reg_i) { reg_name, reg_count, reg_device, reg_address };
    for (int i = 0; i < MAX_DEVICES; i++) {
        memories[i].iface.get_name = memory_name;
        memories[i].iface.alloc_buffer = memory_alloc;
        memories[i].iface.get_alignment = memory_alignment;
        memories[i].device = &devices[i];
        devices[i].reg = &reg;
        devices[i].iface = (struct ggml_backend_device_i) {
            .get_name = device_name,
            .get_description = device_description,
            .get_memory = device_memory,
            .get_type = device_type,
            .get_props = device_props,
            .init_backend = device_init,
            .get_buffer_type = device_memory_type,
            .get_host_buffer_type = device_pinned_type,
            .buffer_from_host_ptr = device_in_place,
            .event_new = event_new,
            .event_free = event_free,
            .event_synchronize = event_synchronize,
            .supports_op = device_supports_op,
            .supports_buft = device_supports_buft,
        };
    }
    pinned = memories[0];
    pinned.iface.get_name = pinned_name;
    pinned.iface.alloc_buffer = pinned_alloc;
    pinned.iface.is_host = pinned_is_host;
    GGML_LOG_WARN("made up: %zu devices in the registry that I see\n", ggml_backend_dev_count());
    return &reg;
}
