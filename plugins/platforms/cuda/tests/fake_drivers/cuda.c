/* A libcuda.so.1 with the functions of cuda.h that the platform asks, and two that create contexts, which it must not
   call. Devices are listed in the order of the line "order=1,0", and by CUDA_VISIBLE_DEVICES only if that is "masked". */
#include "script.h"

static int initialised;

static int listed(int ordinal) {
    char value[TEXT];
    if (!lookup("order", value)) return ordinal;
    char *place = value;
    while (ordinal-- > 0 && (place = strchr(place, ','))) place++;
    return place ? atoi(place) : -1;
}

int cuInit(unsigned flags) {
    char text[TEXT];
    snprintf(text, sizeof text, "mask:%s", getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "unset");
    ENTER(-1);
    enter(text, -1);
    initialised = getpid();
    return 0;
}

#ifndef WITHOUT_COUNT
int cuDeviceGetCount(int *count) {
    ENTER(-1);
    *count = (int)number(-1, "cuda_count", number(-1, "count", 1));
    return initialised == getpid() ? 0 : 3;
}
#endif

int cuDriverGetVersion(int *version) { ENTER(-1); *version = (int)number(-1, "cuda", 12080); return 0; }
int cuDeviceGet(int *device, int ordinal) { ENTER(-1); *device = listed(ordinal); return *device < 0 ? 101 : 0; }

int cuDeviceGetName(char *buffer, int size, int device) {
    char value[TEXT];
    ENTER(device);
    snprintf(buffer, (size_t)size, "%s", property(device, "name", value) ? value : "NVIDIA Test");
    return 0;
}

int cuDeviceGetUuid(unsigned char *bytes, int device) {
    char value[TEXT];
    ENTER(device);
    memset(bytes, 0, 16);
    if (!property(device, "uuid", value)) return 0;
    int done = 0;
    for (char *place = value + 4; *place && done < 32; place++) {
        if (*place == '-') continue;
        int digit = *place <= '9' ? *place - '0' : *place - 'a' + 10;
        bytes[done / 2] |= (unsigned char)(done % 2 ? digit : digit << 4);
        done++;
    }
    return 0;
}

int cuDeviceGetPCIBusId(char *buffer, int size, int device) {
    char value[TEXT];
    ENTER(device);
    snprintf(buffer, (size_t)size, "%s", property(device, "pci", value) ? value : "0000:01:00.0");
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    ENTER(device);
    *bytes = (size_t)number(device, "memory", 80L << 30);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER(device);
    switch (attribute) {
        case 16: *value = (int)number(device, "sm", 132); return 0;
        case 18: *value = (int)number(device, "integrated", 0); return 0;
        case 75: *value = (int)number(device, "major", 9); return 0;
        case 76: *value = (int)number(device, "minor", 0); return 0;
        default: return 1;
    }
}

int cuGetErrorString(int code, const char **text) {
    *text = code == 803 ? "system has unsupported display driver / cuda driver combination" : NULL;
    return *text ? 0 : 1;
}

static int active[8];

int cuCtxCreate_v2(void **context, unsigned flags, int device) { ENTER(device); *context = context; return 0; }

int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER(device);
    *context = context;
    active[device] = 1;
    return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *state) {
    ENTER(device);
    *flags = 0;
    *state = active[device];
    return 0;
}
