// Samples of maps, with channels last, at given points.
//
// An item finds the neighbours of a point (AXES 2 or 3: two along each axis, or the closest alone) and their weights, and
// then mixes `span` channels of them, V at a time. Coordinates are rounded after every operation, as the definition does:
// whoever is half a pixel off would take another neighbour.
#pragma OPENCL FP_CONTRACT OFF

#define CORNERS (NEAREST ? 1 : 1 << AXES)

kernel void grid_sample(global const real *x, global const real *points, global real *y, int x_at, int points_at,
                        int images, int pitch, int span, int depth, int height, int width, int count)
{
    int first = get_global_id(0) * span, point = get_global_id(1), image = get_global_id(2);
    if (first >= pitch || point >= count || image >= images) return;
    const int size[3] = {depth, height, width};
    x += x_at + (size_t)image * depth * height * width * pitch;
    points += points_at + ((size_t)image * count + point) * AXES;
    y += ((size_t)image * count + point) * pitch;

    float low[AXES], rest[AXES];
    for (int a = 0; a < AXES; ++a) {
        float g = LOAD(points, AXES - 1 - a), n = size[3 - AXES + a];
        float place = ALIGN ? (g + 1.0f) / 2.0f * (n - 1.0f) : ((g + 1.0f) * n - 1.0f) / 2.0f;
        if (!ZEROS) place = place < 0.0f ? 0.0f : place > n - 1.0f ? n - 1.0f : place;
        low[a] = floor(NEAREST ? place + 0.5f : place);
        rest[a] = place - low[a];
    }
    int pixel[CORNERS];  // -1: outside, which is zero
    float weight[CORNERS];
    for (int k = 0; k < CORNERS; ++k) {
        bool inside = true;
        pixel[k] = 0;
        weight[k] = 1.0f;
        for (int a = 0; a < AXES; ++a) {
            int up_here = k >> (AXES - 1 - a) & 1, n = size[3 - AXES + a];
            float at = low[a] + (float)up_here;
            if (!NEAREST) weight[k] *= up_here ? rest[a] : 1.0f - rest[a];
            bool in_axis = at >= 0.0f && at < (float)n;
            inside = inside && in_axis;
            pixel[k] = pixel[k] * n + (in_axis ? (int)at : at >= (float)n ? n - 1 : 0);  // NaN: 0
        }
        if (ZEROS && !inside) pixel[k] = -1;
    }
    for (int c = first; c < min(first + span, pitch); c += V) {
        floatV sum = 0.0f;
        for (int k = 0; k < CORNERS; ++k)
            sum += (pixel[k] < 0 ? (floatV)0.0f : LOADV(x, (size_t)pixel[k] * pitch + c)) * weight[k];
        STOREV(sum, y, c);
    }
}
