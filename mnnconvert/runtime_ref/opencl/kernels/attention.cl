// Attention of several heads, y = softmax(scale q k^T + mask) v, without all scores lying anywhere.
//
// An item computes P queries of one head, and looks at KEYS keys at a time. It makes their scores as gemm.cl makes
// products: keys lie in panels [place][panel][depth][B * V]. Then it goes on with the softmax where it was (M. Milakov and
// N. Gimelshein, Online normalizer calculation for softmax, 2018): with m the largest score so far, l the sum of
// exp(score - m) and o that of exp(score - m) v, new scores s with m' = max(m, max s) give
//     l' = exp(m - m') l + sum of exp(s - m'),    o' = exp(m - m') o + sum of exp(s - m') v,
// and in the end y = o / l. While all scores are -inf nothing is added; if they stay so y is 0 / 0.
// NaN scores make NaN of m, and so of y. With a positive cap, scores are cap tanh(scale q k^T / cap) instead.
// Numbers of a mask are added to scores, or, if it `replaces`, take their place where they are not 0. A row that sees no
// key is NaN, or 0 if `blank`: 1 for any row whose softmax is NaN, 2 for those that see no key only.

#define PAIR (WIDTH % 2 ? 1 : 2)  // vectors of values that are summed up at once
#if V == 16
#define IOTA ((intV)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#elif V == 8
#define IOTA ((intV)(0, 1, 2, 3, 4, 5, 6, 7))
#else
#define IOTA ((intV)(0, 1, 2, 3))
#endif

// Scores of B vectors of keys, from `first` on, for each query; keys from `count` on, or hidden from a query, get -inf.
static void score(floatV (*sum)[B], global const real *const *queries, global const real *panel, int depth)
{
    EACH(p, P) EACH(b, B) sum[p][b] = 0.0f;
    for (int d = 0; d < depth; ++d, panel += B * V) {
        floatV key[B];
        EACH(b, B) key[b] = LOADV(panel, b * V);
        EACH(p, P)
        {
            float number = LOAD(queries[p], d);
            EACH(b, B) sum[p][b] += number * key[b];
        }
    }
}

// Of a row of a mask, the numbers of the keys from `first` on; those before `unmasked` have none.
static floatV masked(global const real *mask, int first, int unmasked, int count)
{
    if (first >= unmasked) return load_real(mask + first - unmasked, count - first);
    float added[V];
    for (int i = 0; i < V; ++i)
        added[i] = first + i >= unmasked && first + i < count ? LOAD(mask, first + i - unmasked) : 0.0f;
    return JOIN(vload, V)(0, added);
}

static float larger(float m, float x) { return x > m || x != x ? x : m; }
static float largest(floatV x)
{
    float lanes[V], m = -INFINITY;
    JOIN(vstore, V)(x, 0, lanes);
    EACH(lane, V) m = larger(m, lanes[lane]);
    return m;
}
static float total_of(floatV x)
{
    float lanes[V], sum = 0.0f;
    JOIN(vstore, V)(x, 0, lanes);
    EACH(lane, V) sum += lanes[lane];
    return sum;
}

// Query i of a head sees the first seen + i * seen_step keys. Strides of the mask are 0 where it has one place only.
kernel void attention(global const real *q, global const real *k, global const real *v, global const real *mask,
                      global const real *sinks, global real *y, int q_at, int k_at, int v_at, int mask_at, int sinks_at,
                      int y_at, int batch, int heads, int key_heads, int queries, int keys, int depth, int width,
                      int q_batch, int q_row, int q_head, int k_batch, int k_head, int v_batch, int v_row, int v_head,
                      int mask_batch, int mask_head, int mask_row, int y_batch, int y_row, int y_head, int unmasked,
                      int seen, int seen_step, int replaces, int blank, float scale, float cap)
{
    int row = get_global_id(0) * P, head = get_global_id(1), place = get_global_id(2);
    if (row >= queries || head >= heads || place >= batch) return;
    int shared = head / (heads / key_heads), rows = min(P, queries - row);
    q += (size_t)q_at + (size_t)place * q_batch + (size_t)head * q_head;
    k += (size_t)k_at + (size_t)place * k_batch + (size_t)shared * k_head;
    v += (size_t)v_at + (size_t)place * v_batch + (size_t)shared * v_head;
    y += (size_t)y_at + (size_t)place * y_batch + (size_t)head * y_head;
    if (mask) mask += (size_t)mask_at + (size_t)place * mask_batch + (size_t)head * mask_head;

    global const real *from[P];
    float top[P], total[P], scores[P][KEYS];
    floatV out[P][WIDTH];
    EACH(p, P)
    {
        from[p] = q + (size_t)(row + min(p, rows - 1)) * q_row;
        top[p] = -INFINITY;
        total[p] = 0.0f;
        for (int i = 0; i < WIDTH; ++i) out[p][i] = 0.0f;
    }
    int last = min(keys, seen + (row + rows - 1) * seen_step);
    for (int first = 0; first < last; first += KEYS) {
        int count = min(KEYS, last - first);
        floatV tops[P];
        EACH(p, P) tops[p] = top[p];
        for (int each = 0; each < count; each += B * V) {
            floatV sum[P][B];
            score(sum, from, k + (size_t)(first + each) * depth, depth);
            EACH(p, P) EACH(b, B)
            {
                int at = first + each + b * V, query = row + min(p, rows - 1);
                floatV value = sum[p][b] * scale;
                if (cap > 0.0f) value = tanh(sum[p][b] * (scale / cap)) * cap;
                if (mask) {
                    floatV added = masked(mask + (size_t)query * mask_row, at, unmasked, keys);
                    value = replaces ? (added == 0.0f ? value : added) : value + added;
                }
                value = IOTA < min(keys, seen + query * seen_step) - at ? value : (floatV)-INFINITY;
                tops[p] = value > tops[p] || value != value ? value : tops[p];
                JOIN(vstore, V)(value, 0, &scores[p][each + b * V]);
            }
        }
        float factor[P];
        for (int p = 0; p < P; ++p) {
            float new = largest(tops[p]);
            factor[p] = 1.0f;
            if (new == -INFINITY) {
                for (int t = 0; t < count; ++t) scores[p][t] = 0.0f;
                continue;
            }
            factor[p] = exp(top[p] - new);
            floatV sum = 0.0f;
            for (int i = 0; i < up(count, V); ++i) {
                floatV weight = exp(JOIN(vload, V)(i, scores[p]) - new);
                weight = IOTA < count - i * V ? weight : (floatV)0.0f;
                JOIN(vstore, V)(weight, i, scores[p]);
                sum += weight;
            }
            total[p] = total[p] * factor[p] + total_of(sum);
            top[p] = new;
        }
        for (int i = 0; i < WIDTH; i += PAIR) {
            floatV made[P][PAIR];
            EACH(p, P) EACH(j, PAIR) made[p][j] = out[p][i + j] * factor[p];
            global const real *value = v + (size_t)first * v_row + i * V;
            bool whole = (i + PAIR) * V <= width;
            for (int t = 0; t < count; ++t, value += v_row) {
                floatV each[PAIR];
                EACH(j, PAIR) each[j] = whole ? LOADV(value, j * V) : load_real(value + j * V, width - (i + j) * V);
                EACH(p, P) EACH(j, PAIR) made[p][j] += scores[p][t] * each[j];
            }
            EACH(p, P) EACH(j, PAIR) out[p][i + j] = made[p][j];
        }
    }
    for (int p = 0; p < rows; ++p) {
        float by = total[p], factor = 1.0f;
        if (sinks) {
            float sink = LOAD(sinks, sinks_at + head), new = larger(top[p], sink);
            factor = exp(top[p] - new);
            by = by * factor + exp(sink - new);
        }
        bool zero = blank == 1 ? !(by > 0.0f) : blank == 2 && by == 0.0f;
        global real *to = y + (size_t)(row + p) * y_row;
        for (int i = 0; i < WIDTH; ++i)
            store_real(zero ? (floatV)0.0f : out[p][i] * factor / by, to + i * V, width - i * V);
    }
}
