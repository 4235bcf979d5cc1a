// The readings of many runs of entries at once (see kernels/__init__.py), compiled when first used.
//
// WIDTH is the bits of an entry, 16 or 32, and SHIFT the low bits of a code that the first reading leaves out. A code is
// an entry without its sign. The runs lie one behind the other in one long line of entries, run r from first[r] on
// (first[0] = 0, first[runs] = all); each begins at a multiple of UNIT in that line, so that no group of UNIT crosses from
// one run to the next, and what lies between a run's end and the next one's beginning counts for nothing.
//
// tests/kernels/on_host.h makes plain C++ of it, a thread for each of a block's, to test it without a GPU.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if WIDTH == 16
typedef u16 Entry;
#else
typedef u32 Entry;
#endif

constexpr u32 CODE = WIDTH == 16 ? 0x7FFFu : 0x7FFFFFFFu;
constexpr int KEYS = 1 << 15;
constexpr int UNIT = 8;                    // entries of one byte of a mask
constexpr int WORDS = UNIT * WIDTH / 32;   // and the words they take
constexpr int DEEP = WIDTH == 16 ? 4 : 2;  // units that a thread has on their way to it at once
constexpr int TILE = 16384;                // entries that a block selects from at once
constexpr int STORE = 2048;                // entries that a block collects before it hands them on
constexpr u64 OWN = 1ull << 62;            // marks of a tile's state: its own count,
constexpr u64 ALL = 2ull << 62;            // or the count of all tiles up to it
constexpr u64 MARKS = 3ull << 62;

struct Run {
    Entry* entries;
    const u8* alive;  // bit-packed; null if all are
    u64 size;
};

// The last run that begins at or before a place.
__device__ int run_of(const u64* first, int runs, u64 place) {
    int low = 0, high = runs - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (first[middle] <= place) low = middle; else high = middle - 1;
    }
    return low;
}

// UNIT entries as they lie in memory, and a bit for each that is there and alive.
struct Unit {
    u32 words[WORDS];
    u32 live;
};

__device__ bool is_whole(const Run& run, u64 at) {
    return at + UNIT <= run.size && (reinterpret_cast<u64>(run.entries + at) & 15) == 0;
}

__device__ Unit load(const Run& run, u64 at) {
    Unit unit;
    unit.live = run.alive ? run.alive[at / UNIT] : 0xFFu;
    if (is_whole(run, at)) {
        const uint4* place = reinterpret_cast<const uint4*>(run.entries + at);
#pragma unroll
        for (int part = 0; part < WORDS / 4; ++part) {
            uint4 four = place[part];
            unit.words[4 * part] = four.x;
            unit.words[4 * part + 1] = four.y;
            unit.words[4 * part + 2] = four.z;
            unit.words[4 * part + 3] = four.w;
        }
        return unit;
    }
#pragma unroll
    for (int i = 0; i < WORDS; ++i) unit.words[i] = 0;
#pragma unroll
    for (int i = 0; i < UNIT; ++i) {
        if (at + i < run.size)
            unit.words[i * WIDTH / 32] |= static_cast<u32>(run.entries[at + i]) << (WIDTH == 16 ? 16 * (i % 2) : 0);
        else
            unit.live &= ~(1u << i);
    }
    return unit;
}

__device__ u32 code_of(const Unit& unit, int i) {
    return WIDTH == 16 ? (unit.words[i / 2] >> (16 * (i % 2))) & CODE : unit.words[i] & CODE;
}

// The first reading: of each run, how many entries have each key (zeros aside), and how many are zero.
// Every block goes through one stretch of the line; its counts stay in shared memory until a run ends.
extern "C" __global__ void __launch_bounds__(1024, 1) count_runs(const Run* runs, const u64* first, int total, u32* counts, u64* zeros) {
    extern __shared__ u32 own[];
    u64 units = first[total] / UNIT;
    u64 begin = units * blockIdx.x / gridDim.x, end = units * (blockIdx.x + 1) / gridDim.x;
    for (int i = threadIdx.x; i < KEYS; i += blockDim.x) own[i] = 0;
    __syncthreads();
    while (begin < end) {
        int r = run_of(first, total, begin * UNIT);
        Run run = runs[r];
        u64 start = first[r] / UNIT;
        u64 stop = first[r + 1] / UNIT < end ? first[r + 1] / UNIT : end;
        u64 none = 0;
        for (u64 unit = begin + threadIdx.x; unit < stop; unit += DEEP * blockDim.x) {
            Unit units_here[DEEP];
#pragma unroll
            for (int d = 0; d < DEEP; ++d) {
                u64 next = unit + d * blockDim.x, at = (next - start) * UNIT;
                units_here[d].live = 0;
                if (next < stop && at < run.size) units_here[d] = load(run, at);
            }
#pragma unroll
            for (int d = 0; d < DEEP; ++d) {
                u32 last = 0, same = 0;  // equal neighbours are counted together
#pragma unroll
                for (int i = 0; i < UNIT; ++i) {
                    if (!(units_here[d].live >> i & 1)) continue;
                    u32 code = code_of(units_here[d], i);
                    if (code == 0) { ++none; continue; }
                    u32 key = code >> SHIFT;
                    if (same && key == last) { ++same; continue; }
                    if (same) atomicAdd(&own[last], same);
                    last = key;
                    same = 1;
                }
                if (same) atomicAdd(&own[last], same);
            }
        }
        if (none) atomicAdd(&zeros[r], none);
        __syncthreads();
        for (int i = threadIdx.x; i < KEYS; i += blockDim.x) {
            if (own[i]) {
                atomicAdd(&counts[static_cast<u64>(r) * KEYS + i], own[i]);
                own[i] = 0;
            }
        }
        __syncthreads();
        begin = stop;
    }
}

struct Window {
    u32 low, high;  // codes
    u64 room;       // where its entries may be put in `found`
    u64 capacity;   // and how many
};

#if WIDTH == 32
// The second reading: of each run, the codes within its window, in no order, and about the energy above it.
// More than fit are only counted.
extern "C" __global__ void search_windows(
    const Run* runs, const u64* first, int total, const Window* windows, u32* found, u64* taken, double* energy
) {
    __shared__ u32 store[STORE];
    __shared__ u32 held;
    __shared__ u64 place;
    __shared__ double sum;
    u64 units = first[total] / UNIT;
    u64 begin = units * blockIdx.x / gridDim.x, end = units * (blockIdx.x + 1) / gridDim.x;
    if (threadIdx.x == 0) { held = 0; sum = 0; }
    __syncthreads();
    while (begin < end) {
        int r = run_of(first, total, begin * UNIT);
        Run run = runs[r];
        Window wanted = windows[r];
        u64 start = first[r] / UNIT;
        u64 stop = first[r + 1] / UNIT < end ? first[r + 1] / UNIT : end;
        double above = 0;
        for (u64 base = begin; base < stop; base += blockDim.x) {
            u64 unit = base + threadIdx.x, at = (unit - start) * UNIT;
            if (unit < stop && at < run.size) {
                Unit here = load(run, at);
#pragma unroll
                for (int i = 0; i < UNIT; ++i) {
                    u32 code = code_of(here, i);
                    if (!(here.live >> i & 1) || code < wanted.low) continue;
                    if (code >= wanted.high) {
                        double m = __uint_as_float(code);
                        above += m * m;
                        continue;
                    }
                    u32 mine = atomicAdd(&held, 1u);
                    if (mine < STORE) {
                        store[mine] = code;
                    } else {  // no room left here: straight to where all are put
                        u64 there = atomicAdd(&taken[r], 1ull);
                        if (there < wanted.capacity) found[wanted.room + there] = code;
                    }
                }
            }
            bool done = base + blockDim.x >= stop;
            if (__syncthreads_or(done || held >= STORE / 2)) {
                u32 kept = held < STORE ? held : STORE;
                if (threadIdx.x == 0) place = atomicAdd(&taken[r], static_cast<u64>(kept));
                __syncthreads();
                for (u32 i = threadIdx.x; i < kept; i += blockDim.x)
                    if (place + i < wanted.capacity) found[wanted.room + place + i] = store[i];
                __syncthreads();
                if (threadIdx.x == 0) held = 0;
                __syncthreads();
            }
        }
        if (energy) {
            if (above != 0) atomicAdd(&sum, above);
            __syncthreads();
            if (threadIdx.x == 0) { if (sum != 0) atomicAdd(&energy[r], sum); sum = 0; }
            __syncthreads();
        }
        begin = stop;
    }
}
#endif

struct Cut {
    u32 code;
    u64 drop;    // of the entries that equal it, the first so many go
    u8* packed;  // the mask to write
};

// How many entries equal to the cut lie before a tile, in its run: the first warp of a block looks back over what the
// tiles before have told, 32 at a time.
__device__ u64 before(u64* states, int tile, int first_tile, u64 mine) {
    volatile u64* told = states;
    int lane = threadIdx.x;
    if (lane == 0) told[tile] = (tile == first_tile ? ALL : OWN) | mine;
    __threadfence();
    u64 sum = 0;
    for (int back = tile - 1; back >= first_tile; back -= 32) {
        u64 state = ALL;
        if (back - lane >= first_tile)
            do { state = told[back - lane]; } while ((state & MARKS) == 0);
        u32 complete = __ballot_sync(0xFFFFFFFFu, (state & MARKS) == ALL);
        int last = complete ? __ffs(complete) - 1 : 31;
        u64 part = lane <= last ? state & ~MARKS : 0;
        for (int step = 16; step; step /= 2) part += __shfl_xor_sync(0xFFFFFFFFu, part, step);
        sum += part;
        if (complete) break;
    }
    if (lane == 0 && tile != first_tile) {
        __threadfence();
        told[tile] = ALL | (sum + mine);
    }
    return sum;
}

// The last reading: the mask of each run; what is not kept becomes +0 if `erase`. Tiles are taken in order, `ticket` by
// `ticket`, so that those a tile looks back on have begun.
extern "C" __global__ void select_runs(
    const Run* runs, const Cut* cuts, const int* first_tile, int total, u64* states, int* ticket, int erase
) {
    __shared__ int taken;
    __shared__ u64 earlier;
    __shared__ u32 equal_here;
    __shared__ u16 ranks[TILE / UNIT];
    int tiles = first_tile[total];
    for (;;) {
        if (threadIdx.x == 0) { taken = atomicAdd(ticket, 1); equal_here = 0; }
        __syncthreads();
        int tile = taken;
        if (tile >= tiles) return;
        int low = 0, high = total - 1;
        while (low < high) {
            int middle = (low + high + 1) / 2;
            if (first_tile[middle] <= tile) low = middle; else high = middle - 1;
        }
        Run run = runs[low];
        Cut cut = cuts[low];
        u64 base = static_cast<u64>(tile - first_tile[low]) * TILE;
        u64 prior = 0;
        if (cut.drop) {
            u32 count = 0;
            for (int unit = threadIdx.x; unit < TILE / UNIT; unit += blockDim.x) {
                u64 at = base + static_cast<u64>(unit) * UNIT;
                u32 same = 0;
                if (at < run.size) {
                    Unit here = load(run, at);
#pragma unroll
                    for (int i = 0; i < UNIT; ++i) same += (here.live >> i & 1) && code_of(here, i) == cut.code;
                }
                ranks[unit] = static_cast<u16>(same);
                count += same;
            }
            if (count) atomicAdd(&equal_here, count);
            __syncthreads();
            if (threadIdx.x < 32) {
                u64 sum = before(states, tile, first_tile[low], equal_here);
                if (threadIdx.x == 0) earlier = sum;
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                bool divided = earlier < cut.drop && cut.drop < earlier + equal_here;
                u32 sum = 0;
                for (int unit = 0; divided && unit < TILE / UNIT; ++unit) {
                    u32 same = ranks[unit];
                    ranks[unit] = static_cast<u16>(sum);
                    sum += same;
                }
            }
            __syncthreads();
            prior = earlier;
        }
        bool divided = cut.drop && prior < cut.drop && cut.drop < prior + equal_here;
        bool keep_equal = prior >= cut.drop;
        for (int unit = threadIdx.x; unit < TILE / UNIT; unit += blockDim.x) {
            u64 at = base + static_cast<u64>(unit) * UNIT;
            if (at >= run.size) continue;
            Unit here = load(run, at);
            u64 rank = divided ? prior + ranks[unit] : 0;
            u32 keep = 0;
#pragma unroll
            for (int i = 0; i < UNIT; ++i) {
                u32 code = code_of(here, i);
                bool alive = here.live >> i & 1, equal = alive && code == cut.code;
                bool stays = alive && (code > cut.code || (equal && (divided ? rank >= cut.drop : keep_equal)));
                rank += equal;
                keep |= static_cast<u32>(stays) << i;
            }
            cut.packed[at / UNIT] = static_cast<u8>(keep);
            if (!erase) continue;
            if (!is_whole(run, at)) {
                for (int i = 0; i < UNIT && at + i < run.size; ++i)
                    if (!(keep >> i & 1)) run.entries[at + i] = 0;
            } else if (keep != 0xFFu) {
#pragma unroll
                for (int i = 0; i < UNIT; ++i) {
                    u32 bits = WIDTH == 16 ? 0xFFFFu << (16 * (i % 2)) : 0xFFFFFFFFu;
                    if (!(keep >> i & 1)) here.words[i * WIDTH / 32] &= ~bits;
                }
                uint4* place = reinterpret_cast<uint4*>(run.entries + at);
#pragma unroll
                for (int part = 0; part < WORDS / 4; ++part)
                    place[part] = make_uint4(
                        here.words[4 * part], here.words[4 * part + 1], here.words[4 * part + 2], here.words[4 * part + 3]
                    );
            }
        }
        __syncthreads();
    }
}
