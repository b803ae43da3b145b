/* libcuda.so.1 that knows no device: each function says "no device", and writes who calls it to the file FAKE_CUDA_LOG.
   functions.h lists those of cuda.h, each as FUNCTION(name). */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SUCCESS = 0, NO_DEVICE = 100, NOT_FOUND = 500 };

/* Writes a line such as "cuInit VLLM::EngineCore". */
static int called(const char *name) {
    char line[160], title[100];
    int own = open("/proc/self/cmdline", O_RDONLY);
    long size = own < 0 ? 0 : read(own, title, sizeof title - 1);
    title[size < 0 ? 0 : size] = 0;
    close(own);
    int log = getenv("FAKE_CUDA_LOG") ? open(getenv("FAKE_CUDA_LOG"), O_WRONLY | O_APPEND | O_CREAT, 0666) : -1;
    size = snprintf(line, sizeof line, "%s %s\n", name, title);
    if (log >= 0 && write(log, line, size) != size) abort();
    close(log);
    return NO_DEVICE;
}

int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }

int cuGetErrorString(int error, const char **text) { *text = "the fake driver has no device"; return SUCCESS; }
int cuGetErrorName(int error, const char **text) { *text = "CUDA_ERROR_NO_DEVICE"; return SUCCESS; }

int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *status) {
    *function = dlsym(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), name);
    if (status) *status = !*function;
    return *function ? SUCCESS : NOT_FOUND;
}

int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

#define FUNCTION(name) int name(void) { return called(#name); }
#include "functions.h"
