/* Kernels: their registration and their launches, by the runtime and by the driver. */
#define _GNU_SOURCE
#include "stub.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  unsigned x, y, z;
} Dim3;

/* ---- registration: torch's libraries name their kernels when they are loaded ---- */

enum { SLOTS = 1 << 18 };
static struct {
  const void *function;
  const char *name;
} kernels[SLOTS]; /* a hash table */

static unsigned slot_of(const void *function) {
  unsigned slot = ((size_t)function >> 4) * 0x9E3779B97F4A7C15UL >> 46;
  while (kernels[slot].function && kernels[slot].function != function) slot = (slot + 1) % SLOTS;
  return slot;
}
static const char *name_of(const void *function) {
  const char *name = kernels[slot_of(function)].name;
  return name ? name : "unregistered kernel";
}

API void **__cudaRegisterFatBinary(void *binary) {
  static void *handle[8];
  return handle;
}
API void __cudaRegisterFatBinaryEnd(void **handle) {}
API void __cudaUnregisterFatBinary(void **handle) {}
API void __cudaRegisterVar(void) {}
API void __cudaRegisterFunction(void **handle, const char *function, char *device_function,
                                const char *name, int limit, void *a, void *b, void *c, void *d,
                                int *size) {
  unsigned slot = slot_of(function);
  kernels[slot].function = function;
  kernels[slot].name = name;
}

/* ---- launches by the runtime ---- */

static __thread struct {
  Dim3 grid, block;
  size_t shared;
  void *stream;
} configuration;

API unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void *stream) {
  configuration.grid = grid;
  configuration.block = block;
  configuration.shared = shared;
  configuration.stream = stream;
  return 0;
}
API int __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, void **stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *stream = configuration.stream;
  return 0;
}
API int __cudaGetKernel(const void **kernel, const void *function) {
  return *kernel = function, 0;
}
API int __cudaLaunchKernel(const void *kernel, Dim3 grid, Dim3 block, void **arguments,
                           size_t shared, void *stream) {
  return enqueue(LAUNCH, name_of(kernel), stream, 0);
}
API int cudaLaunchKernel(const void *function, Dim3 grid, Dim3 block, void **arguments,
                         size_t shared, void *stream) {
  return enqueue(LAUNCH, name_of(function), stream, 0);
}
API int cudaLaunchCooperativeKernel(const void *function, Dim3 grid, Dim3 block, void **arguments,
                                    size_t shared, void *stream) {
  return enqueue(LAUNCH, name_of(function), stream, 0);
}
typedef struct {
  Dim3 grid, block;
  size_t shared;
  void *stream;
} LaunchConfig;
API int cudaLaunchKernelExC(const LaunchConfig *config, const void *function, void **arguments) {
  return enqueue(LAUNCH, name_of(function), config->stream, 0);
}

/* ---- launches by the driver: Triton's kernels. A function is its name. ---- */

static void *const HANDLE = (void *)64; /* of contexts and modules, which nobody looks into */

API int cuModuleLoad(void **module, const char *file) { return *module = HANDLE, 0; }
API int cuModuleLoadData(void **module, const void *image) { return *module = HANDLE, 0; }
API int cuModuleLoadDataEx(void **module, const void *image, unsigned n, int *o, void **v) {
  return *module = HANDLE, 0;
}
API int cuModuleGetFunction(char **function, void *module, const char *name) {
  return *function = strdup(name), 0;
}
API int cuLaunchKernel(const char *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                       void *stream, void **arguments, void **extra) {
  return enqueue(LAUNCH, function, stream, 0);
}
API int cuLaunchCooperativeKernel(const char *function, unsigned grid_x, unsigned grid_y,
                                  unsigned grid_z, unsigned block_x, unsigned block_y,
                                  unsigned block_z, unsigned shared, void *stream,
                                  void **arguments) {
  return enqueue(LAUNCH, function, stream, 0);
}
typedef struct {
  Dim3 grid, block;
  unsigned shared;
  void *stream;
} DriverConfig;
API int cuLaunchKernelEx(const DriverConfig *config, const char *function, void **arguments,
                         void **extra) {
  return enqueue(LAUNCH, function, config->stream, 0);
}

/* ---- facts about kernels ---- */

typedef struct {
  size_t shared, constant, local;
  int max_threads, registers, ptx_version, binary_version, others[26];
} FunctionAttributes;
API int cudaFuncGetAttributes(FunctionAttributes *found, const void *function) {
  *found = (FunctionAttributes){
      .max_threads = 1024, .registers = 32, .ptx_version = 90, .binary_version = 90};
  return 0;
}
API int cuFuncGetAttribute(int *value, int attribute, const char *function) {
  *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0; /* threads per block, registers */
  return 0;
}
API int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *num, const void *function, int block,
                                                      size_t shared) {
  return *num = 2, 0;
}
API int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *num, const void *function,
                                                               int block, size_t shared,
                                                               unsigned flags) {
  return *num = 2, 0;
}
API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *num, const char *function, int block,
                                                    size_t shared) {
  return *num = 2, 0;
}
API int cuOccupancyMaxActiveClusters(int *num, const char *function, const void *config) {
  return *num = 66, 0;
}

/* ---- functions by name ---- */

int nothing(void) { return 0; }

static int find_function(const char *name, void **function, int *status) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (!*function) *function = nothing;
  if (status) *status = 0;
  return 0;
}
API int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                int *status) {
  return find_function(name, function, status);
}
API int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                         unsigned long long flags, int *status) {
  return find_function(name, function, status);
}
API int cuGetProcAddress_v2(const char *name, void **function, int version,
                            unsigned long long flags, int *status) {
  return find_function(name, function, status);
}
