// Write the time of a run into a thread's record, for the kernels of the run that may note faults.
//
// Arrays   fault, the record
// Launch   one work-item
__kernel void fault_time(FAULT) { fault[TIME] = (int)call; }
