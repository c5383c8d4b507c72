// Attention over KV blocks, as a custom operation of the CPU backend.
//
// Queries are computed in tiles: adjacent queries that read the same KV blocks, with all their heads
// that share a key head. Keys are read TILE positions at a time, with boundaries at multiples of TILE.
// So the operations for a query, and their order, follow from its own interval alone: not from other
// queries, the tile, the thread, or the places of the blocks. The softmax is the online one (Milakov and
// Gimelshein 2018). Everything is computed in f32. A query whose keys are selected is a tile of its own: its keys
// are gathered TILE at a time, in the order of the list. So is one that attends to the keys of whole blocks of positions:
// those of its last positions are gathered first, then those of blocks.

#include "attention.h"

#include <math.h>
#include <stdatomic.h>

#include "kv.h"

// Rows (a query's head each) of a tile, and floats of their queries and sums together.
#define MAX_ROWS 64
#define ROW_FLOATS 32768

// Indices of the parameters, after those of every custom operation; the last is the next work item.
enum { AT_SCALE = 8, AT_SOFTCAP, AT_MAX_BIAS, AT_BLOCK, AT_SPAN, AT_BIAS, AT_NEAR, AT_NEXT };
_Static_assert(sizeof(struct ggml_custom_op_params) <= sizeof(int32_t)*AT_SCALE, "parameters overlap");
_Static_assert(sizeof(int32_t)*(AT_NEXT + 1) <= GGML_MAX_OP_PARAMS, "no room for the parameters");
_Static_assert(sizeof(_Atomic int32_t) == sizeof(int32_t), "a counter lies among the parameters");

// The keys that are selected for each query, if any are.
struct selected {
    const char * data; // NULL: all
    size_t group, query; // bytes from one list to the next
    int64_t capacity;
    int span, n_groups;
};

// Keys of whole blocks of `span` positions, in the further rows of the KV block where such a block ends.
struct whole {
    int near; // positions before the end of an interval that are attended to themselves; 0: there are no such keys
    int span;
};

// A bias of the scores of each head by the distance of key and query.
struct distance_bias {
    const float * data; // [distances][heads]; NULL: none
    int far;            // distances -far to far have a row, farther ones that of -far or far
};

struct attention {
    const struct ggml_tensor * q;
    struct pool k, v;
    bool v_in_k;
    struct kv_lists lists;
    struct selected selected;
    struct whole whole;
    struct distance_bias bias;
    const float * sinks;
    float * out;
    int64_t n;
    int heads, group;
    float scale, softcap, max_bias;
};

// A query's head.
struct row {
    int first, end; // the positions it attends to
    int pos, head;
    float slope, highest, sum;
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
    int next_kv_head; // of the thread's next work item with these queries; -1: there is none
};

static float parameter(const struct ggml_tensor * t, int at) {
    float x;
    memcpy(&x, t->op_params + at, sizeof(x));
    return x;
}

// Rows of a KV block for the keys of whole blocks of `span` positions that end in it.
static int further_rows(int block, int span) { return span < block ? block / span : 1; }

static struct attention attention_of(const struct ggml_tensor * dst) {
    const struct ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2];
    const int span = dst->op_params[AT_SPAN], near = dst->op_params[AT_NEAR], block = dst->op_params[AT_BLOCK];
    int next = 5;
    const bool has_list = dst->src[next] && dst->src[next]->type == GGML_TYPE_I32;
    const struct ggml_tensor * list = has_list ? dst->src[next++] : NULL;
    const struct ggml_tensor * bias = dst->op_params[AT_BIAS] ? dst->src[next++] : NULL;
    const struct ggml_tensor * sinks = dst->src[next];
    return (struct attention) {
        .q = q,
        .k = pool_of(k),
        .v = pool_of(v),
        .v_in_k = v->data == k->data && v->type == k->type && v->ne[0] <= k->ne[0] && v->nb[1] == k->nb[1] && v->nb[2] == k->nb[2],
        .lists = {
            .queries = dst->src[3]->data,
            .table = dst->src[4]->data,
            .n_table = dst->src[4]->ne[0],
            .n_slots = k->ne[2],
            .block = block,
            .rows = block + (near > 0 ? further_rows(block, span) : 0),
        },
        .selected = list ? (struct selected) { list->data, list->nb[1], list->nb[2], list->ne[0], span, (int) list->ne[1] } : (struct selected) { 0 },
        .whole = { near, span },
        .bias = bias ? (struct distance_bias) { bias->data, (int) (bias->ne[1] / 2) } : (struct distance_bias) { 0 },
        .sinks = sinks ? sinks->data : NULL,
        .out = dst->data,
        .n = q->ne[2],
        .heads = (int) q->ne[1],
        .group = (int) (q->ne[1] / k->ne[1]),
        .scale = parameter(dst, AT_SCALE),
        .softcap = parameter(dst, AT_SOFTCAP),
        .max_bias = parameter(dst, AT_MAX_BIAS),
    };
}

// The list of a query's keys for a key head; NULL: all of its interval.
static const int32_t * list_of(const struct attention * a, int64_t query, int kv_head) {
    const struct selected * l = &a->selected;
    if (!l->data) {
        return NULL;
    }
    const int group = l->n_groups == 1 ? 0 : kv_head;
    const int32_t * list = (const int32_t *) (const void *) (l->data + (size_t) query*l->query + (size_t) group*l->group);
    return list[0] < 0 ? NULL : list;
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

// Adds to `sums` [rows][stride] the values [from, from + n) of a strip, each with its weight; `count`
// vectors of a row from chunk `c` on, the last of them with `rest` elements if that is not 0.
ALWAYS_INLINE void mix_chunks(int type, int rows, int count, const float * weights, const char * values, size_t v_stride, ptrdiff_t ahead, int n, int c, int rest, float * sums, int stride) {
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
            prefetch_chunk(type, row + ahead, c + i);
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
#define MIX(count)                                                                                        \
    if ((count) * rows <= VEC_SUMS) {                                                                     \
        for (; c + (count) <= chunks; c += (count)) {                                                     \
            mix_chunks(type, rows, (count), weights, values, v->stride, v->ahead, n, c, 0, sums, stride); \
        }                                                                                                 \
    }
    MIX(16)
    MIX(8)
    MIX(4)
    MIX(2)
    MIX(1)
#undef MIX
    if (rest && (type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16)) {
        mix_chunks(type, rows, 1, weights, values, v->stride, v->ahead, n, c, rest, sums, stride);
    }
}

static void mix_strip(int rows, const float * weights, const struct strip * v, int from, int n, float * sums, int stride) {
#define CALL(type, m) mix(type, m, weights, v, from, n, sums, stride)
    DISPATCH(v->type, CALL)
#undef CALL
}

// The bias of a row's scores of VEC_LEN positions from `from` on.
static vec bias_of(const struct attention * a, const struct row * row, int64_t from) {
    const int64_t far = a->bias.far;
    float values[VEC_LEN];
    for (int i = 0; i < VEC_LEN; i++) {
        int64_t distance = from + i - row->pos;
        distance = distance < -far ? -far : distance > far ? far : distance;
        values[i] = a->bias.data[(distance + far)*a->heads + row->head];
    }
    return vec_load(values);
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
        if (a->bias.data) {
            x = vec_add(x, bias_of(a, row, (int64_t) base + j));
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

// The tile of a call: rows of queries and sums, and the union of the positions that its rows attend to.
struct tile {
    struct scratch * s;
    float * q, * sums;
    int n_rows, kv_head;
    int next_kv_head; // that of the thread's next tile with the same queries, as it is expected; -1: there is none
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

// The slot and key head of the strip that is computed one tile after the one at `from`, as far as it is known; -1: none.
static int64_t coming(const struct attention * a, const struct tile * t, int from, int * kv_head) {
    const bool is_last = from + TILE >= t->end;
    *kv_head = is_last ? t->next_kv_head : t->kv_head;
    const int64_t slot = *kv_head < 0 ? -1 : strip_slot(&a->lists, t->begin, is_last ? t->first / TILE * TILE + from % TILE : from + TILE);
    return slot < 0 || a->lists.n_slots - slot < STRIP ? -1 : slot;
}

// Prefetches a coming strip, or has it prefetched while `strip`, whose first row is `row`, is computed with.
static void prefetch(const struct pool * pool, int kv_head, int64_t slot, const char * row, struct strip * strip) {
    const char * data = row_of(pool, kv_head, slot);
    if (strip->data == row && IS_PREFETCHED_MEANWHILE(strip->type)) {
        strip->ahead = data - row;
        return;
    }
    const size_t bytes = ggml_row_size(pool->type, pool->width);
    for (int j = 0; j < STRIP; j++) {
        for (size_t at = 0; at < bytes; at += 64) {
            __builtin_prefetch(data + (size_t) j*pool->slot + at, 0, 2);
        }
    }
}

// A strip of a tile at position `from` and `slot`, and the one that is computed after it prefetched.
static struct strip strip_and_next(const struct attention * a, const struct tile * t, const struct pool * pool, int from, int64_t slot, bool copy, float * out) {
    struct strip strip = strip_of(pool, a->lists.n_slots, t->kv_head, slot, copy, out);
    int kv_head;
    const int64_t next = coming(a, t, from, &kv_head);
    if (next >= 0) {
        prefetch(pool, kv_head, next, row_of(pool, t->kv_head, slot), &strip);
    }
    return strip;
}

// Computes the positions [base, base + TILE) for the rows of a tile.
static void attend_tile(const struct attention * a, const struct tile * t, int base) {
    const bool copy = t->n_rows > 2*VEC_MAX_ROWS;
    struct strip k[STRIPS] = { { 0 } }, v[STRIPS] = { { 0 } };
    int64_t slots[STRIPS];
    for (int s = 0; s < STRIPS; s++) {
        const int from = base + s*STRIP;
        const bool is_seen = from < t->end && from + STRIP > t->first;
        slots[s] = is_seen ? strip_slot(&a->lists, t->begin, from) : -1;
        if (slots[s] >= 0) {
            k[s] = strip_and_next(a, t, &a->k, from, slots[s], copy, t->s->converted + (size_t) s*STRIP*a->k.padded);
        }
    }
    score_rows(a, t, k, base);
    for (int s = 0; s < STRIPS; s++) {
        if (slots[s] >= 0 && a->v_in_k) {
            v[s] = k[s];
            v[s].width = a->v.width;
        } else if (slots[s] >= 0) {
            v[s] = strip_and_next(a, t, &a->v, base + s*STRIP, slots[s], copy, t->s->converted + (size_t) s*STRIP*a->v.padded);
        }
    }
    for (int r = 0, rows; r < t->n_rows; r += rows) {
        rows = step_from(r, t->n_rows);
        mix_rows(a, t, v, base, r, rows);
    }
}

// The strips of `n` rows at `slots`, as floats.
static void gather(const struct attention * a, const struct tile * t, const struct pool * pool, const int64_t * slots, int n, struct strip * strips) {
    for (int s = 0; s*STRIP < n; s++) {
        float * out = t->s->converted + (size_t) s*STRIP*pool->padded;
        for (int j = 0; j < STRIP; j++) {
            const int at = s*STRIP + j;
            convert_row(pool, at < n ? row_of(pool, t->kv_head, slots[at]) : NULL, out + (size_t) j*pool->padded);
        }
        strips[s] = converted(pool, out);
    }
}

// Computes `n` selected positions for the rows of a tile.
static void attend_gathered(const struct attention * a, const struct tile * t, const int64_t * slots, int n) {
    struct strip k[STRIPS] = { { 0 } }, v[STRIPS] = { { 0 } };
    for (int r = 0; r < t->n_rows; r++) {
        t->s->rows[r].first = 0;
        t->s->rows[r].end = n;
    }
    gather(a, t, &a->k, slots, n, k);
    score_rows(a, t, k, 0);
    if (a->v_in_k) {
        for (int s = 0; s < STRIPS; s++) {
            v[s] = k[s];
            v[s].width = a->v.width;
        }
    } else {
        gather(a, t, &a->v, slots, n, v);
    }
    for (int r = 0, rows; r < t->n_rows; r += rows) {
        rows = step_from(r, t->n_rows);
        mix_rows(a, t, v, 0, r, rows);
    }
}

// Computes what a list selects of the interval of the one query of a tile.
static void attend_selected(const struct attention * a, const struct tile * t, const int32_t * list) {
    int64_t slots[TILE];
    int n = 0;
    for (int64_t i = 0; i < a->selected.capacity && list[i] >= 0; i++) {
        const int64_t from = (int64_t) list[i]*a->selected.span, end = from + a->selected.span;
        for (int64_t p = from < t->first ? t->first : from; p < end && p < t->end; p++) {
            slots[n++] = (int64_t) a->lists.table[t->begin + p / a->lists.block]*a->lists.block + p % a->lists.block;
            if (n == TILE) {
                attend_gathered(a, t, slots, n);
                n = 0;
            }
        }
    }
    if (n > 0) {
        attend_gathered(a, t, slots, n);
    }
}

// Slots that are gathered.
struct gathered {
    int64_t slots[TILE];
    int n;
};

static void attend_slot(const struct attention * a, const struct tile * t, struct gathered * g, int64_t slot) {
    g->slots[g->n++] = slot;
    if (g->n == TILE) {
        attend_gathered(a, t, g->slots, g->n);
        g->n = 0;
    }
}

// Computes the last positions of the interval of the one query of a tile, and its whole blocks or those of a list.
static void attend_whole(const struct attention * a, const struct tile * t, const int32_t * list) {
    struct gathered g = { .n = 0 };
    const struct kv_lists * l = &a->lists;
    const int first = t->first, end = t->end, span = a->whole.span;
    for (int p = end - first > a->whole.near ? end - a->whole.near : first; p < end; p++) {
        attend_slot(a, t, &g, (int64_t) l->table[t->begin + p / l->block]*l->rows + p % l->block);
    }
    const int64_t n = list ? a->selected.capacity : end / span;
    for (int64_t i = list ? 0 : first / span; i < n && (!list || list[i] >= 0); i++) {
        const int64_t last = ((list ? list[i] : i) + 1)*span - 1;
        if (last >= first && last < end) {
            const int64_t at = span < l->block ? last % l->block / span : 0;
            attend_slot(a, t, &g, (int64_t) l->table[t->begin + last / l->block]*l->rows + l->block + at);
        }
    }
    if (g.n > 0) {
        attend_gathered(a, t, g.slots, g.n);
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
        .next_kv_head = w->next_kv_head,
        .begin = a->lists.queries[4*w->first],
        .first = INT32_MAX,
    };
    memset(t.sums, 0, sizeof(float)*(size_t) n_rows*a->v.padded);
    for (int r = 0; r < n_rows; r++) {
        const int64_t i = w->first + r / w->n_heads;
        const int head = w->head + r % w->n_heads;
        const int32_t * query = a->lists.queries + 4*i;
        struct row * row = s->rows + r;
        if (r % w->n_heads > 0) {
            *row = row[-1];
        } else {
            *row = (struct row) { .pos = query[1], .highest = -INFINITY };
            if (is_sound(&a->lists, query)) {
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
    const int32_t * list = list_of(a, w->first, t.kv_head);
    if (a->whole.near > 0) {
        if (t.first < t.end) {
            attend_whole(a, &t, list);
        }
    } else if (list) {
        attend_selected(a, &t, list);
    } else {
        for (int64_t base = t.first / TILE * TILE; base < t.end; base += TILE) {
            attend_tile(a, &t, (int) base);
        }
    }
    for (int r = 0; r < t.n_rows; r++) {
        const int64_t i = w->first + r / w->n_heads;
        float * out = a->out + (i*a->heads + s->rows[r].head)*a->v.width;
        finish_row(a, s->rows + r, t.sums + (size_t) r*a->v.padded, out);
    }
}

// The first of the at most `limit` queries before `end` that read the same KV blocks as the last one, and all
// keys of their intervals.
static int64_t tile_before(const struct attention * a, int64_t end, int limit) {
    int64_t first = end - 1;
    const int32_t begin = a->lists.queries[4*first];
    if (a->whole.near > 0 || list_of(a, first, 0)) {
        return first;
    }
    while (first > 0 && end - first < limit && a->lists.queries[4*(first - 1)] == begin && !list_of(a, first - 1, 0)) {
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

// The `i`th of `n` items that threads take in turn, so that a thread whose turns are regular gets adjacent ones: the rows of adjacent
// heads lie side by side, and processors prefetch such.
static int in_turn(int i, int n, int n_threads) {
    const int thread = i % n_threads;
    return thread * (n / n_threads) + least(thread, n % n_threads) + i / n_threads;
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
        const int turn = (int) (taken % cut.per_tile);
        const int part = in_turn(turn, cut.per_tile, nth);
        const int at = part % parts * cut.n_heads;
        w.head = part / parts * a.group + at;
        w.n_heads = least(cut.n_heads, a.group - at);
        w.next_kv_head = turn + nth < cut.per_tile ? in_turn(turn + nth, cut.per_tile, nth) / parts : -1;
        attend(&a, &w, &s);
    }
    // Each thread arrives here once; the last one resets the counter for the next run.
    if (taken == cut.n_works + nth - 1) {
        atomic_store(next, 0);
    }
}

struct ggml_tensor * shim_paged_attention(
        struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k, struct ggml_tensor * v,
        struct ggml_tensor * queries, struct ggml_tensor * table, struct ggml_tensor * selected, struct ggml_tensor * bias,
        struct ggml_tensor * sinks, float scale, float softcap, float max_bias, int32_t block, int32_t span, int32_t near) {
    struct ggml_tensor * sources[8] = { q, k, v, queries, table };
    int n = 5;
    if (selected) {
        sources[n++] = selected;
    }
    if (bias) {
        sources[n++] = bias;
    }
    if (sinks) {
        sources[n++] = sinks;
    }
    struct ggml_tensor * dst = ggml_custom_4d(
        ctx, GGML_TYPE_F32, v->ne[0], q->ne[1], q->ne[2], 1, sources, n, paged_attention, GGML_N_TASKS_MAX, NULL);
    const float numbers[] = { scale, softcap, max_bias };
    memcpy(dst->op_params + AT_SCALE, numbers, sizeof(numbers));
    dst->op_params[AT_BLOCK] = block;
    dst->op_params[AT_SPAN] = span;
    dst->op_params[AT_NEAR] = near;
    dst->op_params[AT_BIAS] = bias != NULL;
    dst->op_params[AT_NEXT] = 0;
    return dst;
}

int32_t shim_paged_attention_max_head(void) { return PAGED_ATTENTION_MAX_HEAD; }
int32_t shim_paged_attention_block_step(void) { return STRIP; }

bool shim_is_paged_attention(const struct ggml_tensor * t) {
    return is_custom(t, paged_attention);
}

struct ggml_tensor * shim_device_attention(
        struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k, struct ggml_tensor * v,
        struct ggml_tensor * queries, struct ggml_tensor * table, struct ggml_tensor * sinks,
        float scale, float softcap, float max_bias, int32_t block) {
    struct ggml_tensor * dst = ggml_flash_attn_ext(ctx, q, k, v, NULL, scale, 0.0f, softcap);
    // ggml itself has such a bias with a mask only.
    memcpy(dst->op_params + 1, &max_bias, sizeof(max_bias));
    dst->op_params[4] = block;
    dst->src[4] = sinks;
    dst->src[5] = queries;
    dst->src[6] = table;
    return dst;
}

bool shim_is_device_attention(const struct ggml_tensor * t) {
    return t->op == GGML_OP_FLASH_ATTN_EXT && t->src[6] != NULL;
}
