// Write the keys and values of one position of each row into a key-value cache.
//
// Arrays   k, v (rows, heads, D) of any strides; <name>_at: offset; <name>_row, _head, _step: strides of the axes
//          positions (rows); cache (2, cache_rows, heads, S, D). FAULT: see prelude.cl
// Launch   any group size; a work-item copies `span` consecutive elements of k and v together, of `total`
// Params   WORD     type of an element
//          INDEX    type of positions, int or long

__kernel void cache_update(
    __global const WORD *restrict k, const long k_at, const long k_row, const long k_head, const long k_step,
    __global const WORD *restrict v, const long v_at, const long v_row, const long v_head, const long v_step,
    __global const INDEX *restrict positions, __global WORD *restrict cache, FAULT, const int rows, const int heads,
    const int D, const long cache_rows, const long S, const long total, const long span) {
    const long last = MIN((long)(get_global_id(0) + 1) * span, total);

    for (long i = get_global_id(0) * span; i < last; i++) {
        const int d = i % D, head = i / D % heads, row = i / D / heads % rows, which = i / D / heads / rows;
        const INDEX given = positions[row];
        const long at = given < 0 ? given + S : given;
        if (at < 0 || at >= S) {
            note_fault(fault, call, given, S);
            continue;
        }
        cache[(((which * cache_rows + row) * heads + head) * S + at) * D + d] =
            which ? v[v_at + row * v_row + head * v_head + d * v_step]
                  : k[k_at + row * k_row + head * k_head + d * k_step];
    }
}
