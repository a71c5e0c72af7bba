/* The device: one H100 with 80 GB of memory. */
#include "stub.h"

#include <stdio.h>
#include <string.h>

enum { KIB = 1024, NUM_PROCESSORS = 132, L2_BYTES = 50 * KIB * KIB, BUS_BITS = 5120 };

/* Attributes by their number, equal in cudaDeviceAttr and CUdevice_attribute. */
static int attribute(int number) {
  switch (number) {
    case 1: return 1024;           /* threads per block */
    case 2: case 3: return 1024;   /* width and height of a block */
    case 4: return 64;             /* depth of a block */
    case 5: return 2147483647;     /* width of a grid */
    case 6: case 7: return 65535;  /* height and depth of a grid */
    case 8: return 48 * KIB;       /* shared memory per block */
    case 10: return 32;            /* warp */
    case 12: return 64 * KIB;      /* registers per block */
    case 13: return 1980000;       /* clock, kHz */
    case 16: return NUM_PROCESSORS;
    case 31: return 1;             /* concurrent kernels */
    case 36: return 2619000;       /* clock of the memory, kHz */
    case 37: return BUS_BITS;
    case 38: return L2_BYTES;
    case 39: return 2048;          /* threads per multiprocessor */
    case 41: return 1;             /* unified addresses */
    case 75: return 9;             /* compute capability 9.0 */
    case 78: return 1;             /* stream priorities */
    case 81: return 228 * KIB;     /* shared memory per multiprocessor */
    case 82: return 64 * KIB;      /* registers per multiprocessor */
    case 95: return 1;             /* cooperative launches */
    case 97: return 227 * KIB;     /* shared memory per block, on request */
    case 106: return 32;           /* blocks per multiprocessor */
    case 120: return 1;            /* clusters of blocks */
    default: return 0;
  }
}
API int cudaDeviceGetAttribute(int *value, int number, int device) {
  return *value = attribute(number), 0;
}
API int cuDeviceGetAttribute(int *value, int number, int device) {
  return *value = attribute(number), 0;
}

/* Only in CUDA 12: fields that CUDA 13 removed. */
#if CUDA_VERSION < 13000
#define CUDA_12(...) __VA_ARGS__
#else
#define CUDA_12(...)
#endif

typedef struct {
  char name[256], uuid[16], luid[8];
  unsigned luid_mask;
  size_t memory, shared_per_block;
  int registers_per_block, warp;
  size_t pitch;
  int max_threads, max_block[3], max_grid[3];
  CUDA_12(int clock;)
  size_t constant_memory;
  int major, minor;
  size_t texture_alignment, texture_pitch;
  CUDA_12(int device_overlap;)
  int num_processors;
  CUDA_12(int has_timeout;)
  int is_integrated, can_map_host;
  CUDA_12(int compute_mode;)
  int texture_1d[2];
  CUDA_12(int texture_1d_linear;)
  int textures_and_surfaces[37];
  size_t surface_alignment;
  int concurrent_kernels, ecc, pci[3], tcc, async_engines, unified_addresses;
  CUDA_12(int memory_clock;)
  int bus_bits, l2_bytes, persisting_l2, threads_per_processor, priorities, l1_caches[2];
  size_t shared_per_processor;
  int registers_per_processor, managed_memory, boards[2], host_atomics;
  CUDA_12(int single_to_double;)
  int pageable_access, managed_access, preemption, host_pointers, cooperative_launch;
  CUDA_12(int cooperative_multi_device;)
  size_t shared_per_block_on_request;
  int page_tables, managed_from_host, blocks_per_processor, window;
  size_t reserved_shared;
  int others[76];
} Properties;

static int fill(Properties *found) {
  *found = (Properties){
      .memory = total_memory(),
      .shared_per_block = attribute(8),
      .registers_per_block = attribute(12),
      .warp = attribute(10),
      .max_threads = attribute(1),
      .max_block = {attribute(2), attribute(3), attribute(4)},
      .max_grid = {attribute(5), attribute(6), attribute(7)},
      .constant_memory = 64 * KIB,
      .major = attribute(75),
      .minor = attribute(76),
      .texture_alignment = 512,
      .num_processors = NUM_PROCESSORS,
      .concurrent_kernels = 1,
      .unified_addresses = 1,
      .bus_bits = BUS_BITS,
      .l2_bytes = L2_BYTES,
      .threads_per_processor = attribute(39),
      .priorities = 1,
      .shared_per_processor = attribute(81),
      .registers_per_processor = attribute(82),
      .cooperative_launch = 1,
      .shared_per_block_on_request = attribute(97),
      .blocks_per_processor = attribute(106),
  };
  strcpy(found->name, "NVIDIA H100 80GB (stub, computes nothing)");
  return 0;
}
API int cudaGetDeviceProperties(Properties *found, int device) { return fill(found); }
API int cudaGetDeviceProperties_v2(Properties *found, int device) { return fill(found); }

/* ---- devices, contexts and versions ---- */

static void *const CONTEXT = (void *)64;

API int cudaGetDeviceCount(int *num) { return *num = 1, 0; }
API int cudaGetDevice(int *device) { return *device = 0; }
API int cudaDriverGetVersion(int *version) { return *version = CUDA_VERSION, 0; }
API int cudaRuntimeGetVersion(int *version) { return *version = CUDA_VERSION, 0; }
API int cudaDeviceCanAccessPeer(int *can, int a, int b) { return *can = 0; }
API int cudaDeviceGetPCIBusId(char *id, int size, int device) {
  snprintf(id, size, "0000:00:00.0");
  return 0;
}

API int cuInit(unsigned flags) { return 0; }
API int cuDriverGetVersion(int *version) { return *version = CUDA_VERSION, 0; }
API int cuDeviceGet(int *device, int number) { return *device = 0; }
API int cuDeviceGetCount(int *num) { return *num = 1, 0; }
API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) {
  *flags = 0;
  return *is_active = 1, 0;
}
API int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = CONTEXT, 0; }
API int cuCtxGetCurrent(void **context) { return *context = CONTEXT, 0; }
API int cuCtxGetDevice(int *device) { return *device = 0; }
API int cuCtxGetLimit(size_t *value, int limit) { return *value = 0, 0; }
