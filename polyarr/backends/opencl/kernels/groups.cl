// Rows of which each names a group, for kernels whose work-groups compute the rows of one group.
//
// Params   INDEX   int or long

// Return the group of row r, from 0 to count - 1; -1 if it is out of range.
static inline long group_of(__global const INDEX *restrict groups, long r, long count) {
    const INDEX index = groups[r];
    const long group = index < 0 ? index + count : index;
    return group < count ? group : -1;
}

// Return whether one of the rows is of a group, and note rows whose group is out of range.
static inline bool is_chosen(long own, __global const INDEX *restrict groups, long rows, long count, FAULT) {
    bool found = false;
    for (long r = 0; r < rows; r++) {
        const long group = group_of(groups, r, count);
        if (group < 0) note_fault(fault, call, groups[r], count);
        found |= group == own;
    }
    return found;
}
