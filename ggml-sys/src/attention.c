// Attention over KV blocks, as a custom operation of the CPU backend.
//
// Queries are computed in tiles: adjacent queries that read the same KV blocks, with all their heads
// that share a key head. Keys are read TILE positions at a time, with boundaries at multiples of TILE.
// So the operations for a query, and their order, follow from its own interval alone: not from other
// queries, the tile, the thread, or the places of the blocks. The softmax is the online one (Milakov and
// Gimelshein 2018). Everything is computed in f32.

#include "attention.h"

#include <math.h>
#include <stdatomic.h>

#include "ggml-impl.h"
#include "vec.h"

// Positions between two updates of the highest score.
#define TILE 64
// Positions that are contiguous in a KV block: a divisor of every block length.
#define STRIP 16
#define STRIPS (TILE / STRIP)
// Rows (a query's head each) of a tile, and floats of their queries and sums together.
#define MAX_ROWS 64
#define ROW_FLOATS 32768

// Indices of the parameters, after those of every custom operation; the last is the next work item.
enum { AT_SCALE = 8, AT_SOFTCAP, AT_MAX_BIAS, AT_BLOCK, AT_NEXT };
_Static_assert(sizeof(struct ggml_custom_op_params) <= sizeof(int32_t)*AT_SCALE, "parameters overlap");
_Static_assert(sizeof(int32_t)*(AT_NEXT + 1) <= GGML_MAX_OP_PARAMS, "no room for the parameters");
_Static_assert(sizeof(_Atomic int32_t) == sizeof(int32_t), "a counter lies among the parameters");

struct pool {
    const char * data;
    size_t head, slot; // bytes from one to the next
    enum ggml_type type;
    int width, padded; // elements of a head
};

struct attention {
    const struct ggml_tensor * q;
    struct pool k, v;
    bool v_in_k;
    const int32_t * queries;
    const int32_t * table;
    const float * sinks;
    float * out;
    int64_t n, n_table, n_slots;
    int heads, group, block;
    float scale, softcap, max_bias;
};

// A query's head.
struct row {
    int first, end; // the positions it attends to
    int pos, head;
    float slope, highest, sum;
};

// STRIP positions of a tile, as rows of floats or of the pool's type.
struct strip {
    const char * data;
    size_t stride;
    int type;
    int width; // elements to read of a row
};

// Scratch memory of a thread.
struct scratch {
    _Alignas(64) float rows_q_and_sums[ROW_FLOATS];
    _Alignas(64) float converted[TILE * PAGED_ATTENTION_MAX_HEAD];
    _Alignas(64) float scores[MAX_ROWS * TILE];
    struct row rows[MAX_ROWS];
};

// Queries [first, end), which read the same KV blocks, and heads [head, head + n_heads).
struct work {
    int64_t first, end;
    int head, n_heads;
};

static int padded(int64_t width) { return (int) ((width + VEC_LEN - 1) / VEC_LEN * VEC_LEN); }
static int least(int a, int b) { return a < b ? a : b; }
static int most(int a, int b) { return a > b ? a : b; }

static struct pool pool_of(const struct ggml_tensor * t) {
    return (struct pool) { t->data, t->nb[1], t->nb[2], t->type, (int) t->ne[0], padded(t->ne[0]) };
}

static float parameter(const struct ggml_tensor * t, int at) {
    float x;
    memcpy(&x, t->op_params + at, sizeof(x));
    return x;
}

static struct attention attention_of(const struct ggml_tensor * dst) {
    const struct ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2];
    return (struct attention) {
        .q = q,
        .k = pool_of(k),
        .v = pool_of(v),
        .v_in_k = v->data == k->data && v->type == k->type && v->ne[0] <= k->ne[0] && v->nb[1] == k->nb[1] && v->nb[2] == k->nb[2],
        .queries = dst->src[3]->data,
        .table = dst->src[4]->data,
        .sinks = dst->src[5] ? dst->src[5]->data : NULL,
        .out = dst->data,
        .n = q->ne[2],
        .n_table = dst->src[4]->ne[0],
        .n_slots = k->ne[2],
        .heads = (int) q->ne[1],
        .group = (int) (q->ne[1] / k->ne[1]),
        .block = dst->op_params[AT_BLOCK],
        .scale = parameter(dst, AT_SCALE),
        .softcap = parameter(dst, AT_SOFTCAP),
        .max_bias = parameter(dst, AT_MAX_BIAS),
    };
}

// The slot at which the strip at position `base` begins, or -1 if the block table is invalid there.
static int64_t strip_slot(const struct attention * a, int64_t begin, int base) {
    const int64_t at = begin + base / a->block;
    if (at < 0 || at >= a->n_table || a->table[at] < 0) {
        return -1;
    }
    const int64_t slot = (int64_t) a->table[at] * a->block + base % a->block;
    return slot < a->n_slots ? slot : -1;
}

// Whether a query's interval and all of its KV blocks lie inside the block table and the pool.
static bool is_sound(const struct attention * a, const int32_t * query) {
    const int64_t begin = query[0];
    const int first = query[2], end = query[3];
    if (begin < 0 || first < 0 || first >= end || end > INT32_MAX - 2*TILE) {
        return false;
    }
    if (begin + (end - 1) / a->block >= a->n_table) {
        return false;
    }
    for (int64_t b = first / a->block; b <= (end - 1) / a->block; b++) {
        const int64_t from = (int64_t) a->table[begin + b] * a->block;
        const int64_t last = b == (end - 1) / a->block ? (end - 1) % a->block : a->block - 1;
        if (from < 0 || from + last >= a->n_slots) {
            return false;
        }
    }
    return true;
}

// The factor of a head's distances, as ggml's softmax has it.
static float slope_of(const struct attention * a, int head) {
    if (a->max_bias <= 0.0f) {
        return 0.0f;
    }
    int power = 1;
    while (2*power <= a->heads) {
        power *= 2;
    }
    const float near = powf(2.0f, -a->max_bias / (float) power);
    const float far = powf(2.0f, -(a->max_bias / 2.0f) / (float) power);
    return head < power ? powf(near, (float) (head + 1)) : powf(far, (float) (2*(head - power) + 1));
}

// Sums of products of `rows` queries with the keys of a strip, to `out` [rows][TILE]. Each sum runs
// over its elements in one order, however many rows there are.
ALWAYS_INLINE void score(int type, int rows, const float * q, int q_stride, const struct strip * k, float * out) {
    const int columns = VEC_SUMS / rows;
    const int chunks = k->width / VEC_LEN, rest = k->width % VEC_LEN;
    for (int j = 0; j < STRIP; j += columns) {
        const char * keys = k->data + (size_t) j*k->stride;
        vec sums[VEC_SUMS];
#pragma GCC unroll 16
        for (int i = 0; i < VEC_SUMS; i++) {
            sums[i] = vec_set(0.0f);
        }
        int c = 0;
        // In pairs, so that the half of a block of 32 is a constant.
        for (; c + 1 < chunks; c += 2) {
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                const char * at = type == GGML_TYPE_Q8_0 ? keys + c/2*34 : type == GGML_TYPE_Q4_0 ? keys + c/2*18 : keys;
                const int chunk = type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_0 ? half : c + half;
                vec queries[VEC_MAX_ROWS];
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    queries[r] = vec_held(vec_load(q + r*q_stride + (c + half)*VEC_LEN));
                }
#pragma GCC unroll 16
                for (int i = 0; i < columns; i++) {
                    const vec key = vec_held(vec_row(type, at + (size_t) i*k->stride, chunk));
#pragma GCC unroll 4
                    for (int r = 0; r < rows; r++) {
                        sums[r*columns + i] = vec_fma(queries[r], key, sums[r*columns + i]);
                    }
                }
            }
        }
        if (type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16) {
            for (; c*VEC_LEN < k->width; c++) {
#pragma GCC unroll 16
                for (int i = 0; i < columns; i++) {
                    const char * row = keys + (size_t) i*k->stride;
                    const vec key = c < chunks ? vec_row(type, row, c) : vec_row_end(type, row, c, rest);
#pragma GCC unroll 4
                    for (int r = 0; r < rows; r++) {
                        sums[r*columns + i] = vec_fma(vec_load(q + r*q_stride + c*VEC_LEN), key, sums[r*columns + i]);
                    }
                }
            }
        }
        vec_store_sums(sums, out + j, rows, TILE);
    }
}

// Adds to `sums` [rows][stride] the values [from, from + n) of a strip, each with its weight; `count`
// vectors of a row from chunk `c` on, the last of them with `rest` elements if that is not 0.
ALWAYS_INLINE void mix_chunks(int type, int rows, int count, const float * weights, const char * values, size_t v_stride, int n, int c, int rest, float * sums, int stride) {
    vec acc[VEC_SUMS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < count; i++) {
            acc[r*count + i] = vec_load(sums + r*stride + (c + i)*VEC_LEN);
        }
    }
    for (int j = 0; j < n; j++) {
        const char * row = values + (size_t) j*v_stride;
        vec weight[VEC_MAX_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            weight[r] = vec_set(weights[r*TILE + j]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < count; i++) {
            const vec value = vec_held(rest ? vec_row_end(type, row, c + i, rest) : vec_row(type, row, c + i));
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                acc[r*count + i] = vec_fma(weight[r], value, acc[r*count + i]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < count; i++) {
            vec_store(sums + r*stride + (c + i)*VEC_LEN, acc[r*count + i]);
        }
    }
}

ALWAYS_INLINE void mix(int type, int rows, const float * weights, const struct strip * v, int from, int n, float * sums, int stride) {
    const char * values = v->data + (size_t) from*v->stride;
    const int chunks = v->width / VEC_LEN, rest = v->width % VEC_LEN;
    int c = 0;
#define MIX(count)                                                                                      \
    if ((count) * rows <= VEC_SUMS) {                                                                   \
        for (; c + (count) <= chunks; c += (count)) {                                                   \
            mix_chunks(type, rows, (count), weights, values, v->stride, n, c, 0, sums, stride);         \
        }                                                                                               \
    }
    MIX(16)
    MIX(8)
    MIX(4)
    MIX(2)
    MIX(1)
#undef MIX
    if (rest && (type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16)) {
        mix_chunks(type, rows, 1, weights, values, v->stride, n, c, rest, sums, stride);
    }
}

// A case for each type, and in it one for each number of rows that share what is read.
#if VEC_MAX_ROWS == 4
#define ROWS_OF(type, call) (rows == 4 ? call(type, 4) : rows == 2 ? call(type, 2) : call(type, 1))
#else
#define ROWS_OF(type, call) (rows == 2 ? call(type, 2) : call(type, 1))
#endif
#define DISPATCH(type, call)                                              \
    switch (type) {                                                       \
        case GGML_TYPE_F16:  ROWS_OF(GGML_TYPE_F16, call); break;         \
        case GGML_TYPE_BF16: ROWS_OF(GGML_TYPE_BF16, call); break;        \
        case GGML_TYPE_Q8_0: ROWS_OF(GGML_TYPE_Q8_0, call); break;        \
        case GGML_TYPE_Q4_0: ROWS_OF(GGML_TYPE_Q4_0, call); break;        \
        default:             ROWS_OF(GGML_TYPE_F32, call); break;         \
    }

static void score_strip(int rows, const float * q, int q_stride, const struct strip * k, float * out) {
#define CALL(type, n) score(type, n, q, q_stride, k, out)
    DISPATCH(k->type, CALL)
#undef CALL
}

static void mix_strip(int rows, const float * weights, const struct strip * v, int from, int n, float * sums, int stride) {
#define CALL(type, m) mix(type, m, weights, v, from, n, sums, stride)
    DISPATCH(v->type, CALL)
#undef CALL
}

// Turns scores of positions [base + lo, base + hi) into weights; the row's sums are rescaled first.
static void weigh(const struct attention * a, struct row * row, int base, int lo, int hi, float * scores, float * sums) {
    static const float steps[VEC_LEN] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    const vec step = vec_load(steps), never = vec_set(-INFINITY);
    vec top = never;
    for (int j = lo / VEC_LEN * VEC_LEN; j < hi; j += VEC_LEN) {
        vec x = vec_mul(vec_load(scores + j), vec_set(a->scale));
        if (a->softcap > 0.0f) {
            x = vec_mul(vec_tanh(vec_div(x, vec_set(a->softcap))), vec_set(a->softcap));
        }
        if (row->slope > 0.0f) {
            const float ahead = (float) ((int64_t) row->pos - base - j);
            x = vec_sub(x, vec_mul(vec_abs(vec_sub(vec_set(ahead), step)), vec_set(row->slope)));
        }
        if (lo > j || hi < j + VEC_LEN) {
            x = vec_if_less(step, vec_set((float) (lo - j)), never, x);
            x = vec_if_less(step, vec_set((float) (hi - j)), x, never);
        }
        vec_store(scores + j, x);
        top = vec_max(top, x);
    }
    const float highest = fmaxf(row->highest, vec_highest(top));
    const float shrink = row->highest == highest ? 1.0f : expf(row->highest - highest);
    const vec offset = vec_set(highest);
    vec sum = vec_set(0.0f);
    for (int j = lo / VEC_LEN * VEC_LEN; j < hi; j += VEC_LEN) {
        const vec weight = vec_exp(vec_sub(vec_load(scores + j), offset));
        vec_store(scores + j, weight);
        sum = vec_add(sum, weight);
    }
    row->sum = row->sum * shrink + vec_sum(sum);
    row->highest = highest;
    if (shrink != 1.0f) {
        for (int i = 0; i < a->v.padded; i += VEC_LEN) {
            vec_store(sums + i, vec_mul(vec_load(sums + i), vec_set(shrink)));
        }
    }
}

// Rows of a strip as floats, zeros after the last slot.
static struct strip convert(const struct pool * pool, const char * data, int available, float * out) {
    const int chunks = pool->width / VEC_LEN, rest = pool->width % VEC_LEN;
    for (int j = 0; j < STRIP; j++) {
        float * to = out + (size_t) j*pool->padded;
        if (j >= available) {
            memset(to, 0, sizeof(float)*(size_t) pool->padded);
            continue;
        }
        const char * row = data + (size_t) j*pool->slot;
        for (int c = 0; c < chunks; c++) {
            vec_store(to + c*VEC_LEN, vec_row(pool->type, row, c));
        }
        if (rest) {
            vec_store(to + chunks*VEC_LEN, vec_row_end(pool->type, row, chunks, rest));
        }
    }
    return (struct strip) { (const char *) out, sizeof(float)*(size_t) pool->padded, GGML_TYPE_F32, pool->padded };
}

// A strip of a tile: in place, or a copy as floats if many rows read it or it is cut short.
static struct strip strip_of(const struct attention * a, const struct pool * pool, int head, int64_t slot, bool copy, float * out) {
    const char * data = pool->data + (size_t) head*pool->head + (size_t) slot*pool->slot;
    const int64_t available = a->n_slots - slot;
    if (copy || available < STRIP) {
        return convert(pool, data, available < STRIP ? (int) available : STRIP, out);
    }
    return (struct strip) { data, pool->slot, pool->type, pool->width };
}

static void prefetch(const struct attention * a, const struct pool * pool, int head, int64_t slot) {
    if (slot < 0 || a->n_slots - slot < STRIP) {
        return;
    }
    const char * data = pool->data + (size_t) head*pool->head + (size_t) slot*pool->slot;
    const size_t bytes = ggml_row_size(pool->type, pool->width);
    for (int j = 0; j < STRIP; j++) {
        for (size_t at = 0; at < bytes; at += 64) {
            __builtin_prefetch(data + (size_t) j*pool->slot + at);
        }
    }
}

// Number of rows that are computed together from row `r` on.
static int step_from(int r, int n_rows) {
    const int left = n_rows - r;
    return VEC_MAX_ROWS == 4 && left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

// The tile of a call: rows of queries and sums, and the union of the positions that its rows attend to.
struct tile {
    struct scratch * s;
    float * q, * sums;
    int n_rows, kv_head;
    int64_t begin;
    int first, end;
};

// Adds the values of positions [base + lo, base + hi) to the sums of `rows` rows.
static void mix_range(const struct attention * a, const struct tile * t, const struct strip * v, int r, int rows, int lo, int hi) {
    for (int j = lo; j < hi;) {
        const int s = j / STRIP, upto = least(hi, (s + 1)*STRIP);
        mix_strip(rows, t->s->scores + r*TILE + j, v + s, j % STRIP, upto - j, t->sums + (size_t) r*a->v.padded, a->v.padded);
        j = upto;
    }
}

// The part of a tile of positions that a row attends to.
static void part_of(const struct row * row, int base, int * lo, int * hi) {
    *lo = most(row->first - base, 0);
    *hi = least(row->end - base, TILE);
}

// Adds the values of a tile to `rows` rows: those that all rows attend to together, others row by row, in
// the order of the positions for each row.
static void mix_rows(const struct attention * a, const struct tile * t, const struct strip * v, int base, int r, int rows) {
    int all_lo = 0, all_hi = TILE, lo, hi;
    for (int i = r; i < r + rows; i++) {
        part_of(t->s->rows + i, base, &lo, &hi);
        all_lo = most(all_lo, lo);
        all_hi = least(all_hi, hi);
    }
    for (int i = r; i < r + rows; i++) {
        part_of(t->s->rows + i, base, &lo, &hi);
        mix_range(a, t, v, i, 1, lo, all_lo < all_hi ? all_lo : hi);
    }
    if (all_lo >= all_hi) {
        return;
    }
    mix_range(a, t, v, r, rows, all_lo, all_hi);
    for (int i = r; i < r + rows; i++) {
        part_of(t->s->rows + i, base, &lo, &hi);
        mix_range(a, t, v, i, 1, all_hi, hi);
    }
}

// Scores of a tile of positions for all rows, and their weights.
static void score_rows(const struct attention * a, const struct tile * t, const struct strip * k, int base) {
    for (int r = 0, rows; r < t->n_rows; r += rows) {
        rows = step_from(r, t->n_rows);
        int from = TILE, upto = 0, lo, hi;
        for (int i = r; i < r + rows; i++) {
            part_of(t->s->rows + i, base, &lo, &hi);
            if (lo < hi) {
                from = least(from, lo);
                upto = most(upto, hi);
            }
        }
        for (int s = from / STRIP; s*STRIP < upto; s++) {
            if (k[s].data) {
                score_strip(rows, t->q + (size_t) r*a->k.padded, a->k.padded, k + s, t->s->scores + r*TILE + s*STRIP);
            }
        }
        for (int i = r; i < r + rows; i++) {
            part_of(t->s->rows + i, base, &lo, &hi);
            if (lo < hi) {
                weigh(a, t->s->rows + i, base, lo, hi, t->s->scores + i*TILE, t->sums + (size_t) i*a->v.padded);
            }
        }
    }
}

// Computes the positions [base, base + TILE) for the rows of a tile.
static void attend_tile(const struct attention * a, const struct tile * t, int base) {
    const bool copy = t->n_rows > 2*VEC_MAX_ROWS;
    struct strip k[STRIPS] = { { 0 } }, v[STRIPS] = { { 0 } };
    int64_t slots[STRIPS];
    for (int s = 0; s < STRIPS; s++) {
        const int from = base + s*STRIP;
        const bool is_seen = from < t->end && from + STRIP > t->first;
        slots[s] = is_seen ? strip_slot(a, t->begin, from) : -1;
        if (slots[s] >= 0) {
            k[s] = strip_of(a, &a->k, t->kv_head, slots[s], copy, t->s->converted + (size_t) s*STRIP*a->k.padded);
        }
        if (from + TILE < t->end) {
            const int64_t next = strip_slot(a, t->begin, from + TILE);
            prefetch(a, &a->k, t->kv_head, next);
            prefetch(a, &a->v, t->kv_head, next);
        }
    }
    score_rows(a, t, k, base);
    for (int s = 0; s < STRIPS; s++) {
        if (slots[s] >= 0 && a->v_in_k) {
            v[s] = k[s];
            v[s].width = a->v.width;
        } else if (slots[s] >= 0) {
            v[s] = strip_of(a, &a->v, t->kv_head, slots[s], copy, t->s->converted + (size_t) s*STRIP*a->v.padded);
        }
    }
    for (int r = 0, rows; r < t->n_rows; r += rows) {
        rows = step_from(r, t->n_rows);
        mix_rows(a, t, v, base, r, rows);
    }
}

// Prepares the rows of a tile; a query with an invalid interval attends to nothing.
static struct tile begin_tile(const struct attention * a, const struct work * w, struct scratch * s) {
    const int n_rows = (int) (w->end - w->first)*w->n_heads;
    struct tile t = {
        .s = s,
        .q = s->rows_q_and_sums,
        .sums = s->rows_q_and_sums + (size_t) n_rows*a->k.padded,
        .n_rows = n_rows,
        .kv_head = w->head / a->group,
        .begin = a->queries[4*w->first],
        .first = INT32_MAX,
    };
    memset(t.sums, 0, sizeof(float)*(size_t) n_rows*a->v.padded);
    for (int r = 0; r < n_rows; r++) {
        const int64_t i = w->first + r / w->n_heads;
        const int head = w->head + r % w->n_heads;
        const int32_t * query = a->queries + 4*i;
        struct row * row = s->rows + r;
        if (r % w->n_heads > 0) {
            *row = row[-1];
        } else {
            *row = (struct row) { .pos = query[1], .highest = -INFINITY };
            if (is_sound(a, query)) {
                row->first = query[2];
                row->end = query[3];
                t.first = least(t.first, row->first);
                t.end = most(t.end, row->end);
            }
        }
        row->head = head;
        row->slope = slope_of(a, head);
        float * q = t.q + (size_t) r*a->k.padded;
        memcpy(q, (const char *) a->q->data + (size_t) head*a->q->nb[1] + (size_t) i*a->q->nb[2], sizeof(float)*(size_t) a->k.width);
        memset(q + a->k.width, 0, sizeof(float)*(size_t) (a->k.padded - a->k.width));
    }
    return t;
}

// Writes the sums of a row over the sum of its weights.
static void finish_row(const struct attention * a, struct row * row, const float * sums, float * out) {
    float factor = 1.0f;
    if (row->first < row->end && a->sinks) {
        const float sink = a->sinks[row->head];
        if (sink > row->highest) {
            factor = expf(row->highest - sink);
            row->sum = row->sum*factor + 1.0f;
        } else {
            row->sum += expf(sink - row->highest);
        }
    }
    factor = row->sum == 0.0f ? 0.0f : factor / row->sum;
    for (int i = 0; i < a->v.width; i++) {
        out[i] = sums[i] * factor;
    }
}

static void attend(const struct attention * a, const struct work * w, struct scratch * s) {
    const struct tile t = begin_tile(a, w, s);
    for (int64_t base = t.first / TILE * TILE; base < t.end; base += TILE) {
        attend_tile(a, &t, (int) base);
    }
    for (int r = 0; r < t.n_rows; r++) {
        const int64_t i = w->first + r / w->n_heads;
        float * out = a->out + (i*a->heads + s->rows[r].head)*a->v.width;
        finish_row(a, s->rows + r, t.sums + (size_t) r*a->v.padded, out);
    }
}

// The first of the at most `limit` queries before `end` that read the same KV blocks as the last one.
static int64_t tile_before(const struct attention * a, int64_t end, int limit) {
    int64_t first = end - 1;
    while (first > 0 && end - first < limit && a->queries[4*(first - 1)] == a->queries[4*(end - 1)]) {
        first--;
    }
    return first;
}

// How a call is divided into work items.
struct cut {
    int max_queries; // of a tile
    int n_heads;     // of a tile, the last of a group may have fewer
    int per_tile;    // work items with the queries of one tile
    int64_t n_works;
};

static int64_t n_tiles(const struct attention * a, int limit) {
    int64_t n = 0;
    for (int64_t end = a->n; end > 0; n++) {
        end = tile_before(a, end, limit);
    }
    return n;
}

// As many rows in a tile as fit, but enough work items for every thread.
static struct cut cut_of(const struct attention * a, int n_threads) {
    const int kv_heads = a->heads / a->group;
    const int room = least(MAX_ROWS, ROW_FLOATS / (a->k.padded + a->v.padded));
    struct cut cut = { .n_heads = least(a->group, room) };
    cut.max_queries = room / cut.n_heads;
    int64_t tiles = n_tiles(a, cut.max_queries);
    while (tiles*kv_heads < 4*n_threads && cut.max_queries*cut.n_heads >= 2*STRIP && cut.max_queries > 1) {
        cut.max_queries /= 2;
        tiles = n_tiles(a, cut.max_queries);
    }
    int parts = (a->group + cut.n_heads - 1) / cut.n_heads;
    while (tiles*kv_heads*parts < n_threads && cut.n_heads > 1) {
        cut.n_heads = (cut.n_heads + 1) / 2;
        parts = (a->group + cut.n_heads - 1) / cut.n_heads;
    }
    cut.per_tile = kv_heads*parts;
    cut.n_works = tiles*cut.per_tile;
    return cut;
}

static void paged_attention(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    (void) ith;
    (void) userdata;
    const struct attention a = attention_of(dst);
    const struct cut cut = cut_of(&a, nth);
    const int parts = cut.per_tile / (a.heads / a.group);
    _Atomic int32_t * next = (_Atomic int32_t *) (dst->op_params + AT_NEXT);

    struct scratch s;
    struct work w = { .first = a.n, .end = a.n };
    int64_t tile = -1, taken;
    // The last queries first: they attend to the most positions.
    while ((taken = atomic_fetch_add(next, 1)) < cut.n_works) {
        for (; tile < taken / cut.per_tile; tile++) {
            w.end = w.first;
            w.first = tile_before(&a, w.end, cut.max_queries);
        }
        const int part = (int) (taken % cut.per_tile);
        const int at = part % parts * cut.n_heads;
        w.head = part / parts * a.group + at;
        w.n_heads = least(cut.n_heads, a.group - at);
        attend(&a, &w, &s);
    }
    // Each thread arrives here once; the last one resets the counter for the next run.
    if (taken == cut.n_works + nth - 1) {
        atomic_store(next, 0);
    }
}

struct ggml_tensor * shim_paged_attention(
        struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k, struct ggml_tensor * v,
        struct ggml_tensor * queries, struct ggml_tensor * table, struct ggml_tensor * sinks,
        float scale, float softcap, float max_bias, int32_t block) {
    struct ggml_tensor * sources[] = { q, k, v, queries, table, sinks };
    struct ggml_tensor * dst = ggml_custom_4d(
        ctx, GGML_TYPE_F32, v->ne[0], q->ne[1], q->ne[2], 1, sources, sinks ? 6 : 5, paged_attention, GGML_N_TASKS_MAX, NULL);
    const float numbers[] = { scale, softcap, max_bias };
    memcpy(dst->op_params + AT_SCALE, numbers, sizeof(numbers));
    dst->op_params[AT_BLOCK] = block;
    dst->op_params[AT_NEXT] = 0;
    return dst;
}

int32_t shim_paged_attention_max_head(void) { return PAGED_ATTENTION_MAX_HEAD; }
int32_t shim_paged_attention_block_step(void) { return STRIP; }
