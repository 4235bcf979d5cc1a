// Just enough of CUDA C++ to run a kernel on a CPU, block after block, with a thread for each of a block's.
#include <barrier>
#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#define __device__ static
#define __global__
#define __shared__ static
#define __launch_bounds__(...)

struct uint4 { unsigned x, y, z, w; };
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct Place { int x; };
static thread_local Place threadIdx;
static Place blockIdx, blockDim, gridDim;
static unsigned dynamic_shared[1 << 15];

static std::mutex turn;
static std::barrier<>* together;
static std::vector<unsigned long long> told;

template <class T, class U> static T atomicAdd(T* place, U value) {
    std::lock_guard<std::mutex> hold(turn);
    T before = *place;
    *place = before + static_cast<T>(value);
    return before;
}

static void __syncthreads() { together->arrive_and_wait(); }
static void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

static int __syncthreads_or(int mine) {
    told[threadIdx.x] = mine;
    __syncthreads();
    int any = 0;
    for (unsigned long long each : told) any |= each != 0;
    __syncthreads();
    return any;
}

// Of the first warp alone, which is all that uses them.
static std::barrier<>* warp;

static unsigned __ballot_sync(unsigned, bool mine) {
    told[threadIdx.x] = mine;
    warp->arrive_and_wait();
    unsigned all = 0;
    for (int lane = 0; lane < 32; ++lane) all |= static_cast<unsigned>(told[lane] != 0) << lane;
    warp->arrive_and_wait();
    return all;
}

static unsigned long long __shfl_xor_sync(unsigned, unsigned long long mine, int step) {
    told[threadIdx.x] = mine;
    warp->arrive_and_wait();
    unsigned long long other = told[threadIdx.x ^ step];
    warp->arrive_and_wait();
    return other;
}

static int __ffs(unsigned value) { return __builtin_ffs(value); }

static float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static void launch(int blocks, int threads, const std::function<void()>& kernel) {
    std::barrier<> all(threads), first(32);
    together = &all;
    warp = &first;
    told.assign(threads, 0);
    blockDim.x = threads;
    gridDim.x = blocks;
    for (int block = 0; block < blocks; ++block) {
        blockIdx.x = block;
        std::vector<std::thread> running;
        for (int i = 0; i < threads; ++i)
            running.emplace_back([&, i] { threadIdx.x = i; kernel(); });
        for (std::thread& each : running) each.join();
    }
}
