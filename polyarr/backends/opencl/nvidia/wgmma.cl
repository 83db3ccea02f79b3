// Inline PTX for NVIDIA Hopper, beyond ptx.cl, which must be included before: mbarriers, TMA copies, and wgmma.
//
// Instructions that need the target sm_90a stand behind a comment mark in the PTX, because OpenCL's compiler targets
// sm_90: compiled.py uncomments them and has the driver assemble the PTX again.
//
// Addresses in local memory are 32-bit numbers (local_address in ptx.cl). A matrix is stored there in rows of 128
// bytes, whose 16-byte chunks are permuted by the row's number (128-byte swizzle), in blocks that begin at multiples of
// 1024 bytes.
//
// GROUPS_HELD(count) sets how many work-groups a multiprocessor should hold, which bounds the registers; compiled.py
// moves the directive to the head of the kernel.
//
// Params   KIND       the 16-bit float type: bf16 or f16
//          COLUMNS    columns of a product's tile: 64, 128, 192 or 256
#if !defined(KIND) || !defined(COLUMNS)
#error "wgmma.cl needs KIND and COLUMNS"
#endif

#define GROUPS_HELD(count) asm volatile("//^ .minnctapersm " TEXT(count))

// ---- barriers ---------------------------------------------------------------------------------------------------

// Synchronize the four warps of a group of 128 work-items; `number` of the barrier is 1 or more, 0 is the work-group's.
INLINE void sync_warps(int number) { asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory"); }

// mbarriers: phases 0 and 1 alternate; a phase ends when all arrivals and all expected bytes have come.
INLINE void mbarrier_init(uint at, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
INLINE void mbarrier_init_fence(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
INLINE void mbarrier_expect(uint at, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
INLINE void mbarrier_arrive(uint at, uint really) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p mbarrier.arrive.shared.b64 _, [%0];\n}"
                 ::"r"(at), "r"(really) : "memory");
}
INLINE void mbarrier_wait(uint at, uint phase) {
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra DONE;\nbra AGAIN;\n"
                 "DONE:\n}" ::"r"(at), "r"(phase) : "memory");
}

// ---- tensor maps and TMA ----------------------------------------------------------------------------------------

// Write a tensor map, of which each of the first 16 lanes of a warp holds a word (see tensor_map.py), and acquire it for
// the work-group, which may use it after its next barrier.
INLINE void map_write(__global ulong *map, int lane, ulong word) {
    if (lane < 16) map[lane] = word;
    asm volatile("bar.warp.sync -1;" ::: "memory");
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
    if (lane == 0) asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

// Load the TMA tile whose first element is (column, row, inner, outer) into local memory; the barrier receives its
// bytes.
INLINE void tma_load(uint to, __global const ulong *map, int column, int row, int inner, int outer, uint barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
        "[%6];" ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(inner), "r"(outer), "r"(barrier) : "memory");
}
// Load contiguous bytes, a multiple of 16.
INLINE void tma_load_bytes(uint to, __global const void *from, int bytes, uint barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
INLINE void tma_store(__global const ulong *map, int column, int row, int matrix, uint from) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];"
                 ::"l"(map), "r"(column), "r"(row), "r"(matrix), "r"(from) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Wait until at most `left` TMA stores have still to read local memory.
#define TMA_WAIT_READ(left) asm volatile("cp.async.bulk.wait_group.read " TEXT(left) ";" ::: "memory")
#define TMA_WAIT_STORES() asm volatile("cp.async.bulk.wait_group 0;" ::: "memory")
// Make plain stores to local memory visible to TMA.
#define FENCE_ASYNC_PROXY() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")

// ---- matrix products --------------------------------------------------------------------------------------------

#define SETMAXNREG_DEC(left) asm volatile("//@ setmaxnreg.dec.sync.aligned.u32 " TEXT(left) ";" ::: "memory")
#define SETMAXNREG_INC(all) asm volatile("//@ setmaxnreg.inc.sync.aligned.u32 " TEXT(all) ";" ::: "memory")
#define WGMMA_FENCE() asm volatile("//@ wgmma.fence.sync.aligned;" ::: "memory")
#define WGMMA_COMMIT() asm volatile("//@ wgmma.commit_group.sync.aligned;" ::: "memory")
// Wait until at most `left` groups of wgmma are in flight.
#define WGMMA_WAIT(left) asm volatile("//@ wgmma.wait_group.sync.aligned " TEXT(left) ";" ::: "memory")

// wgmma descriptors of a matrix in local memory at `address` + `offset`, an offset known to the compiler: blocks of 8
// rows of 128 bytes along k or, transposed, of 64 positions x 64 of k. Matrices of a tile differ in one addition.
#define DESCRIPTOR_K_MAJOR(address, offset) DESCRIPTOR(address, offset, 16)
#define DESCRIPTOR_MN_MAJOR(address, offset) DESCRIPTOR(address, offset, 8192)
#define DESCRIPTOR(address, offset, leading) \
    (1UL << 62 | 1024UL / 16 << 32 | (ulong)(((address) >> 4) + ((leading) / 16u << 16) + (uint)(offset) / 16))

#define TEN(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9"
#define SUMS_4(s, i) "+f"((s)[i]), "+f"((s)[i + 1]), "+f"((s)[i + 2]), "+f"((s)[i + 3])
#define SUMS_16(s, i) SUMS_4(s, i), SUMS_4(s, i + 4), SUMS_4(s, i + 8), SUMS_4(s, i + 12)
#define SUMS_32(s, i) SUMS_16(s, i), SUMS_16(s, i + 16)
#define TEN_30 TEN() "," TEN(1) "," TEN(2)
#define TEN_60 TEN_30 "," TEN(3) "," TEN(4) "," TEN(5)
#define TEN_90 TEN_60 "," TEN(6) "," TEN(7) "," TEN(8)
#if COLUMNS == 64
#define REGISTERS TEN_30 ",%30,%31"
#define OPERANDS "%32, %33"
#define ADDS "%34"
#define SUMS(s) SUMS_32(s, 0)
#elif COLUMNS == 128
#define REGISTERS TEN_60 ",%60,%61,%62,%63"
#define OPERANDS "%64, %65"
#define ADDS "%66"
#define SUMS(s) SUMS_32(s, 0), SUMS_32(s, 32)
#elif COLUMNS == 192
#define REGISTERS TEN_90 ",%90,%91,%92,%93,%94,%95"
#define OPERANDS "%96, %97"
#define ADDS "%98"
#define SUMS(s) SUMS_32(s, 0), SUMS_32(s, 32), SUMS_32(s, 64)
#elif COLUMNS == 256
#define REGISTERS TEN_90 "," TEN(9) "," TEN(10) "," TEN(11) ",%120,%121,%122,%123,%124,%125,%126,%127"
#define OPERANDS "%128, %129"
#define ADDS "%130"
#define SUMS(s) SUMS_32(s, 0), SUMS_32(s, 32), SUMS_32(s, 64), SUMS_32(s, 96)
#else
#error "wgmma.cl: COLUMNS is 64, 128, 192 or 256"
#endif

// s[COLUMNS / 2] = x (64 x 16) @ y (16 x COLUMNS), or s += that if `add` is not 0; x, y are descriptors of matrices in
// local memory, transposed if x_transposed, y_transposed are 1.
#define WGMMA(s, x, y, add, x_transposed, y_transposed) \
    asm volatile("//@ {\n//@ .reg .pred p;\n//@ setp.ne.b32 p, " ADDS ", 0;\n//@ wgmma.mma_async.sync.aligned.m64n" \
                 TEXT(COLUMNS) "k16.f32." TEXT(KIND) "." TEXT(KIND) " {" REGISTERS "}, " OPERANDS ", p, 1, 1, " \
                 TEXT(x_transposed) ", " TEXT(y_transposed) ";\n//@ }" : SUMS(s) : "l"(x), "l"(y), "r"(add) : "memory")

// s[32] += x @ y with x (64 x 16) in the registers of four warps, four words per lane, and y a transposed matrix.
#if COLUMNS == 64
#define WGMMA_FROM_REGISTERS(s, x, y) \
    asm volatile("//@ wgmma.mma_async.sync.aligned.m64n64k16.f32." TEXT(KIND) "." TEXT(KIND) " {" REGISTERS \
                 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;" : SUMS(s) : "r"((x)[0]), "r"((x)[1]), "r"((x)[2]), \
                 "r"((x)[3]), "l"(y) : "memory")
#endif

// ---- moving results ---------------------------------------------------------------------------------------------

// stmatrix: store four 8 x 8 matrices of 16-bit elements from the registers of a warp; each lane passes one row's
// address.
INLINE void stmatrix(uint to, uint a, uint b, uint c, uint d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
INLINE void local_store_2(uint to, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(a), "f"(b) : "memory");
}
INLINE uint local_load(uint from) {
    uint word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    return word;
}
INLINE float2 local_load_2(uint from) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
    return v;
}
INLINE float shuffle_from(float v, int lane) {
    float found;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, -1;" : "=f"(found) : "f"(v), "r"(lane));
    return found;
}

INLINE float exp2_approx(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}
// The value of the lane whose number differs by this power of two (butterfly shuffle).
INLINE float shuffle_xor(float v, int distance) {
    float found;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;" : "=f"(found) : "f"(v), "r"(distance));
    return found;
}

// ---- signals between work-groups --------------------------------------------------------------------------------

INLINE void flag_raise(__global uint *flag) {
    asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}
INLINE void flag_await(__global uint *flag) {
    uint raised;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(raised) : "l"(flag) : "memory");
    while (!raised);
}
INLINE float4 load_fresh(__global const float4 *p) {  // bypasses the L1 cache, to read what another work-group wrote
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
    return v;
}
