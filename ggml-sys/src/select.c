// Selection of keys by an indexer over KV blocks, as a custom operation of the CPU backend.
//
// The operations for a score and their order follow from the query and the position alone, and so does what is
// selected by the scores: not from other queries, the thread, or the places of the blocks. All threads compute scores
// first, in pieces of an interval, and then select from them.

#include "select.h"

#include <stdatomic.h>

#include "attention.h"
#include "kv.h"

// Positions of a piece, at least.
#define PIECE 512
// The key of a block that is in the list.
#define IN_LIST 0

// Indices of the parameters, after those of every custom operation; the last are the next work item, and the pieces
// whose scores are there.
enum { AT_TOP = 8, AT_SPAN, AT_LOCAL, AT_BLOCK, AT_NEXT, AT_DONE };
_Static_assert(sizeof(struct ggml_custom_op_params) <= sizeof(int32_t)*AT_TOP, "parameters overlap");
_Static_assert(sizeof(int32_t)*(AT_DONE + 1) <= GGML_MAX_OP_PARAMS, "no room for the parameters");

struct selection {
    const float * q;
    const float * weights;
    struct pool k;
    struct kv_lists lists;
    int32_t * out;
    size_t row; // ints of a list and the keys of its blocks
    int64_t n;
    int heads, groups, top, span, local;
};

// Scratch memory of a thread.
struct scratch {
    _Alignas(64) float q[VEC_MAX_ROWS * PAGED_ATTENTION_MAX_HEAD];
    _Alignas(64) float converted[STRIP * PAGED_ATTENTION_MAX_HEAD];
    _Alignas(64) float scores[VEC_MAX_ROWS * TILE];
};

// A number with the order of the floats, and above that of a block that is in the list.
static uint32_t key_of(float score) {
    uint32_t bits;
    score += 0.0f; // one zero
    memcpy(&bits, &score, sizeof(bits));
    const uint32_t key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return key > IN_LIST ? key : IN_LIST + 1;
}

// A heap of blocks with the smallest key first: lets `block` take the place of the first of the heap at `root`. The
// smaller child moves up until there is none, and the block rises from there. Which of equal ones is where, and so which
// one is given up for a larger one, is as in ggml's selection of the largest numbers of a row.
static void sift(const uint32_t * keys, int32_t * heap, int n, int root, int32_t block) {
    int at = root, child;
    while ((child = 2*at + 1) < n) {
        // Of equal children the right one.
        if (child + 1 < n && keys[heap[child + 1]] <= keys[heap[child]]) {
            child++;
        }
        heap[at] = heap[child];
        at = child;
    }
    while (at > root && keys[heap[(at - 1) / 2]] > keys[block]) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = block;
}

static struct selection selection_of(const struct ggml_tensor * dst) {
    const bool is_sum = dst->src[4] != NULL;
    const struct ggml_tensor * q = dst->src[0], * k = dst->src[1], * table = dst->src[3];
    return (struct selection) {
        .q = q->data,
        .weights = is_sum ? dst->src[4]->data : NULL,
        .k = pool_of(k),
        .lists = { dst->src[2]->data, table->data, table->ne[0], k->ne[2], dst->op_params[AT_BLOCK], dst->op_params[AT_BLOCK] },
        .out = dst->data,
        .row = (size_t) dst->ne[0],
        .n = q->ne[2],
        .heads = (int) q->ne[1],
        .groups = (int) dst->ne[1],
        .top = dst->op_params[AT_TOP],
        .span = dst->op_params[AT_SPAN],
        .local = dst->op_params[AT_LOCAL],
    };
}

// The scores of a strip for `rows` heads from `head` on, to rows of TILE.
static void score_heads(const struct selection * a, int64_t query, int head, int rows, const struct strip * k, struct scratch * s) {
    const int width = a->k.width;
    const float * q = a->q + ((size_t) query*a->heads + head)*width;
    if (width == a->k.padded) {
        score_strip(rows, q, width, k, s->scores);
        return;
    }
    for (int r = 0; r < rows; r++) {
        memcpy(s->q + (size_t) r*a->k.padded, q + (size_t) r*width, sizeof(float)*(size_t) width);
        memset(s->q + (size_t) r*a->k.padded + width, 0, sizeof(float)*(size_t) (a->k.padded - width));
    }
    score_strip(rows, s->q, a->k.padded, k, s->scores);
}

// The scores of a strip: of one head, or the sums over all of them.
static const float * score_query(const struct selection * a, int64_t query, int head, const struct strip * k, struct scratch * s) {
    if (!a->weights) {
        score_heads(a, query, head, 1, k, s);
        return s->scores;
    }
    vec sums = vec_set(0.0f);
    for (int h = 0, rows; h < a->heads; h += rows) {
        rows = step_from(h, a->heads);
        score_heads(a, query, h, rows, k, s);
        for (int r = 0; r < rows; r++) {
            const vec positive = vec_max(vec_set(0.0f), vec_load(s->scores + r*TILE));
            sums = vec_fma(vec_set(a->weights[query*a->heads + h + r]), positive, sums);
        }
    }
    vec_store(s->scores, sums);
    return s->scores;
}

// Whether the block that is not whole is selected, in addition to `top` whole ones.
static bool has_tail(const struct selection * a) {
    return a->local < 0;
}

// Entries of a list.
static int room_of(const struct selection * a) {
    return a->top + (has_tail(a) ? 1 : 0);
}

// The end of the blocks that are judged by their scores.
static int end_of(const struct selection * a, const int32_t * q) {
    return has_tail(a) ? q[3] / a->span : (q[3] - 1) / a->span + 1;
}

// Whether there is anything to select for a query: its interval reaches into more than `top` blocks.
static bool is_selective(const struct selection * a, int64_t query) {
    const int32_t * q = a->lists.queries + 4*query;
    return is_sound(&a->lists, q) && end_of(a, q) - q[2] / a->span > a->top;
}

// Where the list of a query and a head is; the keys of all its blocks follow.
static int32_t * list_of(const struct selection * a, int64_t query, int head) {
    return a->out + ((size_t) query*a->groups + head)*a->row;
}

// The keys of the blocks of a piece.
static void score_piece(const struct selection * a, int64_t query, int head, int64_t from, int64_t upto, struct scratch * s) {
    const int32_t * q = a->lists.queries + 4*query;
    const int first = q[2] > from ? q[2] : (int) from, end = q[3] < upto ? q[3] : (int) upto;
    const int64_t local = (int64_t) q[1] / a->span - a->local;
    uint32_t * keys = (uint32_t *) list_of(a, query, head) + room_of(a);
    uint32_t highest = 0;
    for (int base = first / STRIP * STRIP; base < end; base += STRIP) {
        const int64_t slot = strip_slot(&a->lists, q[0], base);
        const struct strip k = strip_of(&a->k, a->lists.n_slots, 0, slot, false, s->converted);
        const float * scores = score_query(a, query, head, &k, s);
        for (int p = base < first ? first : base; p < end && p < base + STRIP; p++) {
            const uint32_t key = key_of(scores[p - base]);
            highest = key > highest ? key : highest;
            if ((p + 1) % a->span == 0 || p + 1 == end) {
                keys[p / a->span] = a->local > 0 && p / a->span > local ? UINT32_MAX : highest;
                highest = 0;
            }
        }
    }
}

// Writes the list of a query whose keys are there.
static void select_of(const struct selection * a, int64_t query, int head) {
    const int32_t * q = a->lists.queries + 4*query;
    int32_t * list = list_of(a, query, head);
    if (!is_selective(a, query)) {
        list[0] = -1;
        return;
    }
    uint32_t * keys = (uint32_t *) list + room_of(a);
    const int first = q[2] / a->span, end = end_of(a, q);
    for (int i = 0; i < a->top; i++) {
        list[i] = first + i;
    }
    for (int i = a->top / 2 - 1; i >= 0; i--) {
        sift(keys, list, a->top, i, list[i]);
    }
    for (int at = first + a->top; at < end; at++) {
        if (keys[at] > keys[list[0]]) {
            sift(keys, list, a->top, 0, at);
        }
    }
    for (int i = 0; i < a->top; i++) {
        keys[list[i]] = IN_LIST;
    }
    for (int at = first, n = 0; at < end; at++) {
        if (keys[at] == IN_LIST) {
            list[n++] = at;
        }
    }
    if (has_tail(a)) {
        list[a->top] = q[3] % a->span ? end : -1;
    }
}

// Pieces of the longest interval, and positions of a piece: whole blocks.
struct pieces {
    int64_t n, len;
};

static struct pieces pieces_of(const struct selection * a) {
    int64_t longest = 0;
    for (int64_t i = 0; i < a->n; i++) {
        const int32_t end = a->lists.queries[4*i + 3];
        longest = is_selective(a, i) && end > longest ? end : longest;
    }
    const int64_t len = (PIECE + a->span - 1) / a->span * a->span, n = (longest + len - 1) / len;
    // So many that they cannot be counted would be one piece of each query.
    return n*a->n*a->groups < INT32_MAX / 2 ? (struct pieces) { n, len } : (struct pieces) { 1, longest };
}

static void select_keys(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    (void) ith;
    (void) userdata;
    const struct selection a = selection_of(dst);
    const struct pieces pieces = pieces_of(&a);
    const int64_t n_lists = a.n*a.groups, n_pieces = n_lists*pieces.n;
    _Atomic int32_t * next = (_Atomic int32_t *) (dst->op_params + AT_NEXT);
    _Atomic int32_t * done = (_Atomic int32_t *) (dst->op_params + AT_DONE);
    struct scratch s;
    int64_t taken;
    while ((taken = atomic_fetch_add(next, 1)) < n_pieces + n_lists) {
        const int64_t list = taken % n_lists, query = list / a.groups;
        const int head = (int) (list % a.groups);
        if (taken >= n_pieces) {
            // Whoever computes one of them is running.
            while (atomic_load(done) < n_pieces) {
            }
            select_of(&a, query, head);
            continue;
        }
        if (is_selective(&a, query)) {
            const int64_t from = taken / n_lists * pieces.len;
            score_piece(&a, query, head, from, from + pieces.len, &s);
        }
        atomic_fetch_add(done, 1);
    }
    // Each thread arrives here once; the last one resets the counters for the next run.
    if (taken == n_pieces + n_lists + nth - 1) {
        atomic_store(done, 0);
        atomic_store(next, 0);
    }
}

struct ggml_tensor * shim_select(
        struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * weights, struct ggml_tensor * k,
        struct ggml_tensor * queries, struct ggml_tensor * table, int32_t top, int32_t span, int32_t local, int32_t block) {
    struct ggml_tensor * sources[] = { q, k, queries, table, weights };
    const int64_t n_blocks = (table->ne[0]*block + span - 1) / span;
    struct ggml_tensor * dst = ggml_custom_4d(
        ctx, GGML_TYPE_I32, top + (local < 0 ? 1 : 0) + n_blocks, weights ? 1 : q->ne[1], q->ne[2], 1, sources, weights ? 5 : 4, select_keys, GGML_N_TASKS_MAX, NULL);
    const int32_t numbers[] = { top, span, local, block, 0, 0 };
    memcpy(dst->op_params + AT_TOP, numbers, sizeof(numbers));
    return dst;
}

bool shim_is_select(const struct ggml_tensor * t) {
    return is_custom(t, select_keys);
}
