// Cooperative rows: how LANES work-items of a GPU reduce a row together; included by the kernels that reduce rows.
//
// A row is read in aligned vectors wherever it begins; the first and last vector may contain elements of other rows. A
// work-item has one slot (vector) of every LANES. To limit rounding errors, it first reduces the vectors of RUN
// consecutive slots element by element, then adds the elements to its result of earlier runs; finally the results of
// the LANES work-items are reduced.
//
// Params   VECTOR       elements of a vector
//          WG, LANES    work-items per group, and per row: powers of two

#define STEP (LANES * VECTOR)
#define RUN 128  // slots that are summed on their own, which loses fewer digits than one long sum

// Declare me, the work-item's index among those that share its row, and team, the local id of the first of them.
#define TEAM const int me = (int)get_local_id(0) % LANES, team = (int)get_local_id(0) - me;
