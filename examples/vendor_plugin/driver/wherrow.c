/* The driver of an invented device, as its vendor would install it: device nodes, memory, streams, events.
 *
 * A node is a text file ROOT/dev/wherrow0, …: what a real driver would read from hardware. wherrow_query reads it and
 * nothing else; wherrow_open is what makes a context. What a stream is given runs on that stream's own thread, in order.
 * Every function returns 0 or an error that wherrow_error_text names. After fork() the child may only query.
 *
 *     cc -shared -fPIC -O2 -pthread -o ROOT/lib/libwherrow.so.1 wherrow.c
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { OK, NO_DEVICE, OUT_OF_MEMORY, NOT_OPEN, FORKED, NO_THREAD };
enum { MAX_DEVICES = 16, ALIGNMENT = 256 };

const char *wherrow_error_text(int error) {
    static const char *const texts[] = {"no error", "no such device", "out of memory", "the device is not open",
                                        "the device was opened before a fork", "no thread for a stream"};
    return error >= 0 && error <= NO_THREAD ? texts[error] : "unknown error";
}

const char *wherrow_version(void) { return "1.4.2"; }

/* Devices */

struct properties {
    char name[64], arch[16], uuid[64];
    uint64_t memory_bytes;
};

int wherrow_query(const char *root, int number, struct properties *found) {
    char path[4096], line[256];
    memset(found, 0, sizeof *found);
    if (snprintf(path, sizeof path, "%s/dev/wherrow%d", root, number) >= (int)sizeof path) return NO_DEVICE;
    FILE *node = fopen(path, "r");
    if (!node) return NO_DEVICE;
    while (fgets(line, sizeof line, node)) {
        sscanf(line, "name=%63[^\n]", found->name);
        sscanf(line, "arch=%15[^\n]", found->arch);
        sscanf(line, "uuid=%63[^\n]", found->uuid);
        sscanf(line, "memory_bytes=%lu", (unsigned long *)&found->memory_bytes);
    }
    fclose(node);
    return found->memory_bytes ? OK : NO_DEVICE;
}

struct block {
    uint64_t start, size;
    int taken;
    struct block *next;
};
struct device {
    char *base; /* NULL: not open */
    uint64_t total, used, most;
    struct block *blocks;
};
static struct device devices[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int forked;

static void in_child(void) {
    pthread_mutex_init(&lock, NULL);
    for (int number = 0; number < MAX_DEVICES; number++)
        if (devices[number].base) forked = 1;
}

static int check(int number) {
    if (forked) return FORKED;
    if (number < 0 || number >= MAX_DEVICES) return NO_DEVICE;
    return devices[number].base ? OK : NOT_OPEN;
}

int wherrow_open(const char *root, int number, void **base) {
    static int watches_forks;
    struct properties found;
    if (forked) return FORKED;
    if (number < 0 || number >= MAX_DEVICES || wherrow_query(root, number, &found)) return NO_DEVICE;
    pthread_mutex_lock(&lock);
    struct device *device = &devices[number];
    if (!watches_forks) watches_forks = !pthread_atfork(NULL, NULL, in_child);
    if (!device->base) {
        void *memory = mmap(NULL, found.memory_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        struct block *all = calloc(1, sizeof *all);
        if (memory != MAP_FAILED && all) {
            all->size = found.memory_bytes / ALIGNMENT * ALIGNMENT;
            *device = (struct device){.base = memory, .total = found.memory_bytes, .blocks = all};
        }
    }
    *base = device->base;
    pthread_mutex_unlock(&lock);
    return *base ? OK : OUT_OF_MEMORY;
}

int wherrow_is_open(int number) { return check(number) == OK; }
int wherrow_is_forked(void) { return forked; }

int wherrow_memory(int number, uint64_t *used, uint64_t *most, uint64_t *total) {
    int error = check(number);
    if (error) return error;
    pthread_mutex_lock(&lock);
    *used = devices[number].used, *most = devices[number].most, *total = devices[number].total;
    pthread_mutex_unlock(&lock);
    return OK;
}

/* Memory goes out as DLPack has it (dmlc/dlpack, v0.8), with its own way back: whoever holds it calls `deleter`. */

typedef struct {
    void *data;
    struct { int32_t type, number; } device;
    int32_t ndim;
    struct { uint8_t code, bits; uint16_t lanes; } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;
typedef struct managed {
    DLTensor tensor;
    void *context;
    void (*deleter)(struct managed *);
} DLManagedTensor;
struct allocation {
    DLManagedTensor managed;
    struct device *device;
    int64_t shape, stride;
};

static void release(DLManagedTensor *managed) {
    struct allocation *allocation = managed->context;
    struct device *device = allocation->device;
    uint64_t start = (uint64_t)((char *)managed->tensor.data - device->base);
    pthread_mutex_lock(&lock);
    struct block *before = NULL, *block = device->blocks;
    while (block->start != start || !block->taken) before = block, block = block->next;
    block->taken = 0;
    device->used -= block->size;
    if (before && !before->taken) {
        before->size += block->size, before->next = block->next;
        free(block);
        block = before;
    }
    struct block *after = block->next;
    if (after && !after->taken) {
        block->size += after->size, block->next = after->next;
        free(after);
    }
    pthread_mutex_unlock(&lock);
    free(allocation);
}

int wherrow_allocate(int number, int logical, uint64_t bytes, void **managed) {
    int error = check(number);
    if (error) return error;
    struct device *device = &devices[number];
    struct allocation *made = calloc(1, sizeof *made);
    struct block *rest = calloc(1, sizeof *rest);
    uint64_t size = (bytes / ALIGNMENT + 1) * ALIGNMENT; /* never nothing: every allocation has its own address */
    pthread_mutex_lock(&lock);
    struct block *block = device->blocks;
    while (block && (block->taken || block->size < size)) block = block->next;
    if (!block || !made || !rest) {
        pthread_mutex_unlock(&lock);
        free(made), free(rest);
        return OUT_OF_MEMORY;
    }
    if (block->size > size) {
        *rest = (struct block){.start = block->start + size, .size = block->size - size, .next = block->next};
        block->size = size, block->next = rest;
    } else {
        free(rest);
    }
    block->taken = 1;
    device->used += size;
    if (device->used > device->most) device->most = device->used;
    pthread_mutex_unlock(&lock);
    made->device = device, made->shape = (int64_t)size, made->stride = 1;
    made->managed = (DLManagedTensor){.context = made, .deleter = release};
    made->managed.tensor.data = device->base + block->start;
    made->managed.tensor.device.type = 12; /* kDLExtDev */
    made->managed.tensor.device.number = logical;
    made->managed.tensor.ndim = 1;
    made->managed.tensor.dtype.code = 1, made->managed.tensor.dtype.bits = 8, made->managed.tensor.dtype.lanes = 1;
    made->managed.tensor.shape = &made->shape, made->managed.tensor.strides = &made->stride;
    *managed = &made->managed;
    return OK;
}

/* Streams and events */

struct event {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded, reached; /* how often it was recorded, and how far the streams have come */
    double milliseconds;        /* when it was reached last */
    int holders;
};
struct task {
    void (*function)(uint64_t);
    uint64_t argument; /* of the function; of an event: which record */
    struct event *reach, *await;
    struct task *next;
};
struct stream {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct task *first, **last;
    int busy, closing;
};

static void drop(struct event *event) {
    pthread_mutex_lock(&event->lock);
    int left = --event->holders;
    pthread_mutex_unlock(&event->lock);
    if (!left) free(event);
}

static void perform(struct task *task) {
    struct event *event = task->reach ? task->reach : task->await;
    if (!event) {
        task->function(task->argument);
        return;
    }
    pthread_mutex_lock(&event->lock);
    if (task->reach) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        event->milliseconds = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
        if (event->reached < task->argument) event->reached = task->argument;
        pthread_cond_broadcast(&event->changed);
    } else {
        while (event->reached < task->argument) pthread_cond_wait(&event->changed, &event->lock);
    }
    pthread_mutex_unlock(&event->lock);
    drop(event);
}

static void *work(void *argument) {
    struct stream *stream = argument;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (!stream->first && !stream->closing) pthread_cond_wait(&stream->changed, &stream->lock);
        struct task *task = stream->first;
        if (!task) break;
        stream->first = task->next;
        if (!stream->first) stream->last = &stream->first;
        stream->busy = 1;
        pthread_mutex_unlock(&stream->lock);
        perform(task);
        free(task);
        pthread_mutex_lock(&stream->lock);
        stream->busy = 0;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    free(stream);
    return NULL;
}

static int submit(struct stream *stream, struct task what) {
    struct task *task = malloc(sizeof *task);
    if (forked || !task) {
        free(task);
        return forked ? FORKED : OUT_OF_MEMORY;
    }
    *task = what;
    pthread_mutex_lock(&stream->lock);
    *stream->last = task;
    stream->last = &task->next;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    return OK;
}

int wherrow_stream_create(int number, void **made) {
    int error = check(number);
    if (error) return error;
    pthread_t thread;
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream) return OUT_OF_MEMORY;
    stream->last = &stream->first;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    if (pthread_create(&thread, NULL, work, stream)) {
        free(stream);
        return NO_THREAD;
    }
    pthread_detach(thread);
    *made = stream;
    return OK;
}

void wherrow_stream_destroy(struct stream *stream) { /* what it was given before still runs */
    if (forked) return;
    pthread_mutex_lock(&stream->lock);
    stream->closing = 1;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

int wherrow_launch(struct stream *stream, void (*function)(uint64_t), uint64_t argument) {
    return submit(stream, (struct task){.function = function, .argument = argument});
}

int wherrow_stream_synchronize(struct stream *stream) {
    if (forked) return FORKED;
    pthread_mutex_lock(&stream->lock);
    while (stream->first || stream->busy) pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
    return OK;
}

int wherrow_event_create(void **made) {
    struct event *event = calloc(1, sizeof *event);
    if (!event) return OUT_OF_MEMORY;
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->changed, NULL);
    event->holders = 1;
    *made = event;
    return OK;
}

void wherrow_event_destroy(struct event *event) {
    if (!forked) drop(event);
}

static int enqueue(struct event *event, struct stream *stream, int records) {
    if (forked) return FORKED;
    pthread_mutex_lock(&event->lock);
    struct task task = {.argument = records ? ++event->recorded : event->recorded};
    event->holders++;
    pthread_mutex_unlock(&event->lock);
    *(records ? &task.reach : &task.await) = event;
    int error = submit(stream, task);
    if (error) drop(event);
    return error;
}

int wherrow_event_record(struct event *event, struct stream *stream) { return enqueue(event, stream, 1); }
int wherrow_stream_wait_event(struct stream *stream, struct event *event) { return enqueue(event, stream, 0); }

int wherrow_event_query(struct event *event) {
    pthread_mutex_lock(&event->lock);
    int reached = event->reached >= event->recorded;
    pthread_mutex_unlock(&event->lock);
    return reached;
}

int wherrow_event_synchronize(struct event *event) {
    if (forked) return FORKED;
    pthread_mutex_lock(&event->lock);
    for (uint64_t wanted = event->recorded; event->reached < wanted;) pthread_cond_wait(&event->changed, &event->lock);
    pthread_mutex_unlock(&event->lock);
    return OK;
}

double wherrow_event_milliseconds(struct event *event) {
    pthread_mutex_lock(&event->lock);
    double when = event->milliseconds;
    pthread_mutex_unlock(&event->lock);
    return when;
}
