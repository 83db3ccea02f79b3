// How a team of LANES work-items goes along a row on a GPU: included by the kernels that join the elements of rows.
//
// A row lies in aligned vectors wherever it begins; the first and the last may hold elements of others. A work-item has
// a slot of every LANES vectors. It joins the first elements of its slots, the second ones and so on, RUN slots in a row,
// then what it has of a run, element by element, with what it has of the runs before; then the team's are joined.
//
// Params   VECTOR elements of a vector | WG work-items of a group | LANES of these that share a row: powers of two
#if !defined(VECTOR) || !defined(WG) || !defined(LANES)
#error "teams.cl needs VECTOR, WG and LANES"
#endif

#define STEP (LANES * VECTOR)
#define RUN 128  // long sums of short sums lose fewer digits than one long sum

// Declares one's place in the team, and the place of the team's first in the group.
#define TEAM const int me = (int)get_local_id(0) % LANES, team = (int)get_local_id(0) - me;
