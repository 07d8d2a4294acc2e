/* A libnvidia-ml.so.1 with the functions of nvml.h that the platform asks. A handle is the device's number plus one; that
   of a MIG instance is (device + 1) * 100 + place + 1. */
#include "script.h"

typedef void *handle_t;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct {
    unsigned sm_count, engines[5], gpu_slices, compute_slices;
    unsigned long long memory_mib;
} attributes_t;

static int gpu_of(handle_t handle) {
    long value = (long)handle;
    return (int)(value >= 100 ? value / 100 : value) - 1;
}

static int place_of(handle_t handle) { return (long)handle >= 100 ? (int)((long)handle % 100) - 1 : -1; }

static long of_instance(handle_t handle, const char *name, long otherwise) {
    char key[TEXT];
    snprintf(key, sizeof key, "mig%d.%s", place_of(handle), name);
    return number(gpu_of(handle), key, otherwise);
}

static int tell(int device, const char *name, const char *otherwise, char *buffer, unsigned size) {
    char value[TEXT];
    snprintf(buffer, size, "%s", property(device, name, value) ? value : otherwise);
    return 0;
}

#ifndef WITHOUT_INIT
int nvmlInitWithFlags(unsigned flags) { ENTER(-1); return 0; }
#endif
int nvmlShutdown(void) { ENTER(-1); return 0; }

const char *nvmlErrorString(int code) {
    switch (code) {
        case 4: return "Insufficient Permissions";
        case 9: return "Driver Not Loaded";
        case 18: return "Driver/library version mismatch";
        case 77: return "\xff\xfe";
        case 999: return "Unknown Error";
        default: return "Some Error";
    }
}

int nvmlSystemGetDriverVersion(char *buffer, unsigned size) { ENTER(-1); snprintf(buffer, size, "570.86.15"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { ENTER(-1); *version = (int)number(-1, "cuda", 12080); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { ENTER(-1); *count = (unsigned)number(-1, "count", 1); return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t *handle) {
    ENTER((int)index);
    *handle = (handle_t)(long)(index + 1);
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, handle_t *handle) {
    char value[TEXT];
    ENTER(-1);
    for (int device = 0; device < number(-1, "count", 1); device++)
        if (property(device, "uuid", value) && !strcmp(uuid, value)) {
            *handle = (handle_t)(long)(device + 1);
            return 0;
        }
    return 6;
}

int nvmlDeviceGetName(handle_t handle, char *buffer, unsigned size) {
    ENTER(gpu_of(handle));
    return tell(gpu_of(handle), "name", "NVIDIA Test", buffer, size);
}

int nvmlDeviceGetUUID(handle_t handle, char *buffer, unsigned size) {
    char key[TEXT];
    ENTER(gpu_of(handle));
    if (place_of(handle) < 0) return tell(gpu_of(handle), "uuid", "GPU-0", buffer, size);
    snprintf(key, sizeof key, "mig%d.uuid", place_of(handle));
    return tell(gpu_of(handle), key, "MIG-0", buffer, size);
}

int nvmlDeviceGetPciInfo_v3(handle_t handle, pci_t *info) {
    ENTER(gpu_of(handle));
    memset(info, 0, sizeof *info);
    return tell(gpu_of(handle), "pci", "00000000:01:00.0", info->bus_id, sizeof info->bus_id);
}

int nvmlDeviceGetCudaComputeCapability(handle_t handle, int *major, int *minor) {
    ENTER(gpu_of(handle));
    *major = (int)number(gpu_of(handle), "major", 9);
    *minor = (int)number(gpu_of(handle), "minor", 0);
    return 0;
}

int nvmlDeviceGetMemoryInfo(handle_t handle, memory_t *memory) {
    ENTER(gpu_of(handle));
    memory->total = (unsigned long long)number(gpu_of(handle), "memory", 80L << 30);
    memory->used = (unsigned long long)number(gpu_of(handle), "used", 1L << 30);
    memory->free = memory->total - memory->used;
    return 0;
}

int nvmlDeviceGetNumGpuCores(handle_t handle, unsigned *cores) {
    ENTER(gpu_of(handle));
    *cores = (unsigned)number(gpu_of(handle), "cores", 132 * 128);
    return 0;
}

int nvmlDeviceGetMigMode(handle_t handle, unsigned *current, unsigned *pending) {
    ENTER(gpu_of(handle));
    long mode = number(gpu_of(handle), "mig", -1);
    if (mode < 0) return 3;
    *current = *pending = (unsigned)mode;
    return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(handle_t handle, unsigned *count) { ENTER(gpu_of(handle)); *count = 7; return 0; }

int nvmlDeviceGetMigDeviceHandleByIndex(handle_t handle, unsigned place, handle_t *instance) {
    char key[TEXT], value[TEXT];
    ENTER(gpu_of(handle));
    snprintf(key, sizeof key, "mig%u.uuid", place);
    if (!property(gpu_of(handle), key, value)) return 6;
    *instance = (handle_t)((long)handle * 100 + place + 1);
    return 0;
}

int nvmlDeviceGetGpuInstanceId(handle_t handle, unsigned *id) {
    ENTER(gpu_of(handle));
    *id = (unsigned)of_instance(handle, "gi", 1);
    return 0;
}

int nvmlDeviceGetComputeInstanceId(handle_t handle, unsigned *id) {
    ENTER(gpu_of(handle));
    *id = (unsigned)of_instance(handle, "ci", 0);
    return 0;
}

int nvmlDeviceGetAttributes_v2(handle_t handle, attributes_t *attributes) {
    ENTER(gpu_of(handle));
    if (place_of(handle) < 0) return 3;
    memset(attributes, 0, sizeof *attributes);
    attributes->sm_count = (unsigned)of_instance(handle, "sm", 16);
    attributes->memory_mib = (unsigned long long)of_instance(handle, "mib", 9856);
    return 0;
}

int nvmlDeviceGetP2PStatus(handle_t one, handle_t two, int index, int *status) {
    char key[TEXT];
    ENTER(gpu_of(one));
    snprintf(key, sizeof key, "p2p%d", index);
    *status = (int)number(-1, key, 0);
    return 0;
}

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
    unsigned health;
} fabric_t;

int nvmlDeviceGetGpuFabricInfoV(handle_t handle, fabric_t *fabric) {
    ENTER(gpu_of(handle));
    fabric->state = (unsigned char)number(gpu_of(handle), "fabric", 0);
    return 0;
}
