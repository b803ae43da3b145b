/* libnvidia-ml.so.1 of a machine with the cards that the file FAKE_DRIVER tells of: see driver.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_t;

/* The value of a key in FAKE_DRIVER, a flat JSON object. */
static const char *value(const char *key) {
    static char text[4096], found[96];
    char quoted[64];
    FILE *file = fopen(getenv("FAKE_DRIVER") ? getenv("FAKE_DRIVER") : "", "r");
    if (!file) return "0";
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(text, quoted);
    *found = 0;
    if (at) sscanf(at + strlen(quoted), " %*[\"]%95[^\"]", found);
    if (at && !*found) sscanf(at + strlen(quoted), " %95[^,}\"]", found);
    return *found ? found : "0";
}

static int copied(char *to, unsigned size, const char *from) {
    snprintf(to, size, "%s", from);
    return SUCCESS;
}

/* A handle is the index and 1, since 0 is no handle. */
static long index_of(void *device) { return (long)device - 1; }

int nvmlInit(void) { return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int error) { return error ? "the fake driver does not know" : "success"; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { return copied(to, size, value("driver")); }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = 13000; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = atoi(value("count")); return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if ((long)index >= atol(value("count"))) return INVALID_ARGUMENT;
    *device = (void *)(long)(index + 1);
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *to, unsigned size) {
    snprintf(to, size, "GPU-00000000-0000-0000-0000-%012ld", index_of(device));
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    const char *last = strrchr(uuid, '-');
    return last ? nvmlDeviceGetHandleByIndex_v2(atoi(last + 1), device) : NOT_FOUND;
}

int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = index_of(device); return SUCCESS; }
int nvmlDeviceGetName(void *device, char *to, unsigned size) { return copied(to, size, value("name")); }

int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    unsigned long long total = strtoull(value("memory"), NULL, 10) << 20;
    *memory = (memory_t){total, total, 0};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2_t *memory) {
    memory->total = memory->free = strtoull(value("memory"), NULL, 10) << 20;
    memory->reserved = memory->used = 0;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    return sscanf(value("capability"), "%d.%d", major, minor) == 2 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetPciInfo_v3(void *device, pci_t *pci) {
    *pci = (pci_t){.bus = index_of(device) + 1};
    snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", pci->bus);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return SUCCESS;
}

int nvmlDeviceGetP2PStatus(void *one, void *other, int capability, int *status) { *status = 0; return SUCCESS; }
int nvmlDeviceGetNumaNodeId(void *device, unsigned *node) { return NOT_SUPPORTED; }

int nvmlDeviceGetCpuAffinity(void *device, unsigned size, unsigned long *cpus) {
    memset(cpus, 255, size * sizeof *cpus);
    return SUCCESS;
}
