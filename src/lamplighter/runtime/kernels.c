/* Sparse networks on ordinary processors: the operations, and the threads that share them out.
 *
 * Plain C without any library but the system's. The convolutions are compiled for several instruction sets
 * (kernels_lanes.h); which of them this processor has is asked at run time.
 */
#include "kernels.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define JOIN(a, b) a##b
#define JOINED(a, b) JOIN(a, b)
#define NAME(x) JOINED(x, SUFFIX)
#define PRAGMA(x) _Pragma(#x)
#if defined(__clang__)
#define BEGIN_TARGET(isa) PRAGMA(clang attribute push(__attribute__((target(isa))), apply_to = function))
#define END_TARGET PRAGMA(clang attribute pop)
#else
#define BEGIN_TARGET(isa) PRAGMA(GCC push_options) PRAGMA(GCC target(isa))
#define END_TARGET PRAGMA(GCC pop_options)
#endif

/* Keeps the compiler from reading a shared vector again for each use, where one instruction would do both. */
#if defined(__AVX512F__) || (defined(__x86_64__) && !defined(__clang__))
#define IN_REGISTER(value) __asm__("" : "+v"(value))
#elif defined(__aarch64__)
#define IN_REGISTER(value) __asm__("" : "+w"(value))
#else
#define IN_REGISTER(value) (void)0
#endif

#define WIDEST 16384 /* floats in a row of the input of a pool; Python refuses wider ones */

#define LANES 4
#define SUFFIX _4
#include "kernels_lanes.h"
#undef LANES
#undef SUFFIX

#if defined(__x86_64__)
BEGIN_TARGET("avx2,fma")
#define LANES 8
#define SUFFIX _8_avx2
#include "kernels_lanes.h"
#undef LANES
#undef SUFFIX
END_TARGET
BEGIN_TARGET("avx512f,avx512vl,avx512dq,avx512bw,fma,avx2")
#define LANES 8
#define SUFFIX _8_avx512
#include "kernels_lanes.h"
#undef LANES
#undef SUFFIX
#define LANES 16
#define SUFFIX _16_avx512
#include "kernels_lanes.h"
#undef LANES
#undef SUFFIX
END_TARGET
#endif

enum { PLAIN, AVX2, AVX512 };

/* The best instruction set of this processor: 0 what every processor of its kind has, 1 AVX2, 2 AVX-512. */
int32_t lamp_best(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw"))
        return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    return PLAIN;
}

static lamp_kernels kernels_for(int32_t level, int32_t lanes) {
#if defined(__x86_64__)
    if (level >= AVX512 && lanes == 16) return (lamp_kernels){conv_16_avx512, dot_16_avx512, pool_16_avx512};
    if (level >= AVX512 && lanes == 8) return (lamp_kernels){conv_8_avx512, dot_8_avx512, pool_8_avx512};
    if (level >= AVX2 && lanes == 8) return (lamp_kernels){conv_8_avx2, dot_8_avx2, pool_8_avx2};
#endif
    (void)level;
    if (lanes == 4) return (lamp_kernels){conv_4, dot_4, pool_4};
    return (lamp_kernels){0, 0, 0};
}

/* 1 if there are kernels for vectors of that many floats. */
int32_t lamp_has(int32_t level, int32_t lanes) { return kernels_for(level, lanes).conv != 0; }

int64_t lamp_op_size(void) { return sizeof(lamp_op); }

/* What a run works on. */
typedef struct {
    const float *input;
    float *output;
    int64_t images, first; /* in all, and the first of this chunk */
} lamp_job;

/* The mean over the image. What lies between the rows is zero. */
static void mean(const lamp_op *op, int32_t task) {
    const int32_t begin = task * op->chunk, end = begin + op->chunk, batch = op->batch;
    const int64_t positions = (int64_t)(op->in_h - 1) * op->in_pitch + op->in_w;
    for (int32_t channel = begin; channel < end && channel < op->channels; channel++) {
        const float *x = op->x + channel * op->x_plane;
        float *y = op->y + channel * op->y_plane;
        for (int32_t i = 0; i < batch; i++) y[i] = 0;
        if (batch == 1) {
            float sums[8] = {0};
            int64_t position = 0;
            for (; position + 8 <= positions; position += 8)
                for (int k = 0; k < 8; k++) sums[k] += x[position + k];
            for (; position < positions; position++) sums[0] += x[position];
            for (int k = 0; k < 8; k++) y[0] += sums[k];
        } else
            for (int64_t position = 0; position < positions; position++)
                for (int32_t i = 0; i < batch; i++) y[i] += x[position * batch + i];
        for (int32_t i = 0; i < batch; i++) y[i] *= op->scale;
    }
}

/* The pixels of each phase of the strides as a plane of their own: what a convolution with stride reads. */
static void split(const lamp_op *op, int32_t task) {
    const int32_t begin = task * op->chunk, end = begin + op->chunk, batch = op->batch;
    const int32_t phases = op->phases;
    for (int32_t channel = begin; channel < end && channel < op->channels; channel++)
        for (int32_t phase = 0; phase < phases; phase++) {
            const int32_t down = phase / op->stride_w, along = phase % op->stride_w;
            float *plane = op->y + ((int64_t)channel * phases + phase) * op->y_plane;
            for (int32_t line = down; line < op->in_h; line += op->stride_h) {
                const float *x = op->x + channel * op->x_plane + (int64_t)line * op->in_pitch * batch;
                float *y = plane + (int64_t)(line / op->stride_h) * op->out_pitch * batch;
                if (batch == 1)
                    for (int32_t column = along; column < op->in_w; column += op->stride_w) *y++ = x[column];
                else
                    for (int32_t column = along; column < op->in_w; column += op->stride_w, y += batch)
                        memcpy(y, x + (int64_t)column * batch, batch * sizeof(float));
            }
        }
}

/* How many images of a chunk there really are: of the last chunk perhaps fewer than others have. */
static int32_t present(const lamp_op *op, const lamp_job *job) {
    const int64_t left = job->images - job->first;
    return left < op->batch ? (int32_t)left : op->batch;
}

#define LINE 16 /* channels at a time where there is one position: what is read of an image is read whole */

/* From images one after the other to images side by side. */
static void load_images(const lamp_op *op, int32_t task, const lamp_job *job) {
    const int32_t begin = task * op->chunk, end = begin + op->chunk, batch = op->batch, here = present(op, job);
    const int64_t plane = (int64_t)op->in_h * op->in_w;
    if (plane == 1) {
        for (int32_t first = begin; first < end && first < op->channels; first += LINE) {
            const int32_t stop = first + LINE < op->channels ? first + LINE : op->channels;
            for (int32_t image = 0; image < here; image++) {
                const float *x = job->input + (job->first + image) * op->channels;
                for (int32_t channel = first; channel < stop; channel++)
                    op->y[channel * op->y_plane + image] = x[channel];
            }
        }
        return;
    }
    for (int32_t channel = begin; channel < end && channel < op->channels; channel++)
        for (int32_t image = 0; image < here; image++) {
            const float *x = job->input + ((job->first + image) * op->channels + channel) * plane;
            for (int32_t line = 0; line < op->in_h; line++, x += op->in_w) {
                float *y = op->y + channel * op->y_plane + (int64_t)line * op->out_pitch * batch + image;
                if (batch == 1)
                    memcpy(y, x, op->in_w * sizeof(float));
                else
                    for (int32_t column = 0; column < op->in_w; column++) y[(int64_t)column * batch] = x[column];
            }
        }
}

/* And back. */
static void store_images(const lamp_op *op, int32_t task, const lamp_job *job) {
    const int32_t begin = task * op->chunk, end = begin + op->chunk, batch = op->batch, here = present(op, job);
    const int64_t plane = (int64_t)op->in_h * op->in_w;
    if (plane == 1) {
        for (int32_t first = begin; first < end && first < op->channels; first += LINE) {
            const int32_t stop = first + LINE < op->channels ? first + LINE : op->channels;
            for (int32_t image = 0; image < here; image++) {
                float *y = job->output + (job->first + image) * op->channels;
                for (int32_t channel = first; channel < stop; channel++)
                    y[channel] = op->x[channel * op->x_plane + image];
            }
        }
        return;
    }
    for (int32_t channel = begin; channel < end && channel < op->channels; channel++)
        for (int32_t image = 0; image < here; image++) {
            float *y = job->output + ((job->first + image) * op->channels + channel) * plane;
            for (int32_t line = 0; line < op->in_h; line++, y += op->in_w) {
                const float *x = op->x + channel * op->x_plane + (int64_t)line * op->in_pitch * batch + image;
                for (int32_t column = 0; column < op->in_w; column++) y[column] = x[(int64_t)column * batch];
            }
        }
}

/* Threads that wait for work together with the one that calls. */
typedef struct {
    int32_t threads;
    pthread_t *members;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint round; /* goes up when there is work */
    int32_t open;      /* whether members may still join this round; guarded by `lock` */
    atomic_int active; /* members in it */
    atomic_int stopping;
    atomic_int *next; /* of each operation the next task, then of each how many tasks are done */
    int32_t room;     /* operations there is room for */
    const lamp_op *ops;
    int32_t count, level;
    lamp_job job;
} lamp_team;

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Wait until `what` is `value`: a little while without giving up the processor, then politely. */
static void wait_for(atomic_int *what, int value) {
    for (int spins = 0; atomic_load_explicit(what, memory_order_acquire) != value; spins++)
        if (spins < 4000)
            relax();
        else
            sched_yield();
}

static void do_task(const lamp_op *op, int32_t task, const lamp_kernels *kernels, const lamp_job *job) {
    switch (op->kind) {
    case LAMP_CONV: kernels->conv(op, task); break;
    case LAMP_DOT: kernels->dot(op, task); break;
    case LAMP_POOL: kernels->pool(op, task); break;
    case LAMP_MEAN: mean(op, task); break;
    case LAMP_SPLIT: split(op, task); break;
    case LAMP_LOAD: load_images(op, task, job); break;
    case LAMP_STORE: store_images(op, task, job); break;
    }
}

/* What each thread does: take tasks of an operation until none is left, wait until all are done, go on to the next.
 *
 * Nobody waits for threads, only for tasks: one that the system lets run late, or not at all, holds nothing up.
 */
static void work(lamp_team *team) {
    for (int32_t place = 0; place < team->count; place++) {
        const lamp_op *op = team->ops + place;
        const lamp_kernels kernels = kernels_for(team->level, op->lanes);
        int32_t task;
        if (team->threads == 1) {
            for (task = 0; task < op->tasks; task++) do_task(op, task, &kernels, &team->job);
            continue;
        }
        atomic_int *next = team->next + place, *done = team->next + team->room + place;
        while ((task = atomic_fetch_add(next, 1)) < op->tasks) {
            do_task(op, task, &kernels, &team->job);
            atomic_fetch_add_explicit(done, 1, memory_order_release);
        }
        wait_for(done, op->tasks);
    }
}

static void *member(void *given) {
    lamp_team *team = given;
    unsigned seen = 0;
    for (;;) {
        for (int spins = 0; spins < 4000 && atomic_load(&team->round) == seen; spins++) relax();
        pthread_mutex_lock(&team->lock);
        while (atomic_load(&team->round) == seen) pthread_cond_wait(&team->wake, &team->lock);
        seen = atomic_load(&team->round);
        const int32_t join = team->open;
        if (join) atomic_fetch_add(&team->active, 1);
        pthread_mutex_unlock(&team->lock);
        if (atomic_load(&team->stopping)) return 0;
        if (!join) continue;
        work(team);
        atomic_fetch_sub(&team->active, 1);
    }
}

static void start_round(lamp_team *team, int32_t open) {
    pthread_mutex_lock(&team->lock);
    team->open = open;
    atomic_fetch_add(&team->round, 1);
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->lock);
}

/* After this, no member looks at the operations any more. */
static void end_round(lamp_team *team) {
    pthread_mutex_lock(&team->lock);
    team->open = 0;
    pthread_mutex_unlock(&team->lock);
    wait_for(&team->active, 0);
}

void lamp_team_free(lamp_team *team) {
    if (!team) return;
    atomic_store(&team->stopping, 1);
    start_round(team, 0);
    for (int32_t i = 0; i + 1 < team->threads; i++) pthread_join(team->members[i], 0);
    pthread_mutex_destroy(&team->lock);
    pthread_cond_destroy(&team->wake);
    free(team->members);
    free(team->next);
    free(team);
}

/* A team of that many threads, the calling one included; NULL if the system has no more. */
lamp_team *lamp_team_new(int32_t threads) {
    lamp_team *team = calloc(1, sizeof *team);
    if (!team) return 0;
    team->members = calloc(threads, sizeof *team->members);
    pthread_mutex_init(&team->lock, 0);
    pthread_cond_init(&team->wake, 0);
    team->threads = 1;
    for (int32_t i = 0; team->members && i + 1 < threads; i++) {
        if (pthread_create(team->members + i, 0, member, team)) break;
        team->threads++;
    }
    if (team->threads == threads) return team;
    lamp_team_free(team);
    return 0;
}

/* Carry out the operations on all images, a chunk of `batch` at a time. 0 if done, 1 if there is no memory. */
int32_t lamp_run(lamp_team *team, int32_t level, const lamp_op *ops, int32_t count, const float *input, float *output,
                 int64_t images, int32_t batch) {
    if (count > team->room) {
        atomic_int *next = realloc(team->next, 2 * count * sizeof *next);
        if (!next) return 1;
        team->next = next;
        team->room = count;
    }
    team->ops = ops;
    team->count = count;
    team->level = level;
    for (int64_t first = 0; first < images; first += batch) {
        team->job = (lamp_job){input, output, images, first};
        for (int32_t i = 0; i < 2 * team->room; i++) atomic_init(team->next + i, 0);
        if (team->threads > 1) start_round(team, 1);
        work(team);
        if (team->threads > 1) end_round(team);
    }
    return 0;
}
