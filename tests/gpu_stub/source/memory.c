/* Device memory, pinned memory, copies and memsets.
 *
 * Device memory is a range of addresses that nobody may read or write, so it takes no memory, and
 * host code that touches it crashes, as with CUDA. A copy to the device drops the bytes. A copy
 * from the device gives zeros; a single byte gives 1, so that `bool(tensor.all())` is true.
 */
#define _GNU_SOURCE
#include "stub.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct {
  char *start;
  size_t size;
} Block;

typedef struct {
  Block *blocks;
  int num, room;
} Table;

static Table device, pinned;
static size_t live;       /* bytes of device memory in use */
static char *arena, *top; /* addresses of device memory; each is given once */
static const size_t ARENA = (size_t)1 << 42, GRAIN = (size_t)2 << 20;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void add(Table *table, void *start, size_t size) {
  if (table->num == table->room) {
    table->room = table->room ? 2 * table->room : 256;
    table->blocks = realloc(table->blocks, table->room * sizeof(Block));
  }
  table->blocks[table->num++] = (Block){start, size};
}

static size_t take_out(Table *table, const void *start) {
  for (int i = table->num - 1; i >= 0; i--)
    if (table->blocks[i].start == start) {
      size_t size = table->blocks[i].size;
      table->blocks[i] = table->blocks[--table->num];
      return size;
    }
  return 0;
}

/* STUB_GPU_GIB: size of the device memory; by default what an H100 with 80 GB has. */
size_t total_memory(void) {
  const char *text = getenv("STUB_GPU_GIB");
  return (text ? atof(text) : 79.1) * ((size_t)1 << 30);
}

static int is_device(const void *p) {
  return arena && (const char *)p >= arena && (const char *)p < arena + ARENA;
}

static int is_pinned(const void *p) {
  int found = 0;
  pthread_mutex_lock(&lock);
  for (int i = pinned.num - 1; i >= 0 && !found; i--) {
    Block *block = &pinned.blocks[i];
    found = (const char *)p >= block->start && (const char *)p < block->start + block->size;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

static int allocate(void **made, size_t size, const char *name) {
  int error = refuse_unsafe(name);
  if (error || (error = count(MALLOC, name, size))) return error;
  size_t rounded = (size + GRAIN - 1) / GRAIN * GRAIN;
  pthread_mutex_lock(&lock);
  if (!arena) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    arena = top = mmap(0, ARENA, PROT_NONE, flags, -1, 0);
    if (arena == MAP_FAILED) abort();
  }
  int fits = live + rounded <= total_memory() && top + rounded <= arena + ARENA;
  if (fits) {
    add(&device, *made = top, rounded);
    top += rounded;
    live += rounded;
  }
  pthread_mutex_unlock(&lock);
  return fits ? 0 : failed(OUT_OF_MEMORY);
}

static int release(void *p) {
  pthread_mutex_lock(&lock);
  live -= take_out(&device, p);
  pthread_mutex_unlock(&lock);
  return 0;
}

API int cudaMalloc(void **made, size_t size) { return allocate(made, size, "cudaMalloc"); }
API int cudaMallocAsync(void **made, size_t size, void *stream) {
  return allocate(made, size, "cudaMallocAsync");
}
API int cudaMallocManaged(void **made, size_t size, unsigned flags) {
  return allocate(made, size, "cudaMallocManaged");
}
API int cudaGetSymbolAddress(void **made, const void *symbol) {
  return allocate(made, 4096, "cudaGetSymbolAddress");
}
API int cudaFree(void *p) { return refuse_unsafe("cudaFree") ? CAPTURE_UNSUPPORTED : release(p); }
API int cudaFreeAsync(void *p, void *stream) { return release(p); }
API int cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  *total = total_memory();
  *free_bytes = *total - live;
  return 0;
}

/* ---- pinned host memory ---- */

static void pin(void *p, size_t size) {
  pthread_mutex_lock(&lock);
  add(&pinned, p, size);
  pthread_mutex_unlock(&lock);
}
static size_t unpin(void *p) {
  pthread_mutex_lock(&lock);
  size_t size = take_out(&pinned, p);
  pthread_mutex_unlock(&lock);
  return size;
}
API int cudaHostAlloc(void **made, size_t size, unsigned flags) {
  int error = refuse_unsafe("cudaHostAlloc");
  if (error || (error = count(MALLOC, "cudaHostAlloc", size))) return error;
  *made = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  if (!*made) return failed(OUT_OF_MEMORY);
  pin(*made, size);
  return 0;
}
API int cudaMallocHost(void **made, size_t size) { return cudaHostAlloc(made, size, 0); }
API int cudaFreeHost(void *p) {
  unpin(p);
  free(p);
  return 0;
}
API int cudaHostRegister(void *p, size_t size, unsigned flags) {
  pin(p, size);
  return count(MALLOC, "cudaHostRegister", size);
}
API int cudaHostUnregister(void *p) { return unpin(p) ? 0 : failed(INVALID_VALUE); }
API int cudaHostGetDevicePointer(void **made, void *p, unsigned flags) { return *made = p, 0; }

/* ---- what a pointer is ---- */

typedef struct {
  int type, device;
  void *device_pointer, *host_pointer;
} PointerAttributes; /* CUDA 13 adds reserved fields behind these */
enum { UNREGISTERED, HOST, DEVICE };

API int cudaPointerGetAttributes(PointerAttributes *found, const void *p) {
  int on_device = is_device(p), type = on_device ? DEVICE : is_pinned(p) ? HOST : UNREGISTERED;
  void *address = (void *)p;
  *found = (PointerAttributes){type, 0, type ? address : 0, on_device ? 0 : address};
  return 0;
}
API int cuPointerGetAttribute(void *value, int attribute, uintptr_t p) {
  if (!is_device((void *)p)) return INVALID_VALUE;
  if (attribute == 2) *(int *)value = DEVICE; /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
  else *(uintptr_t *)value = p;
  return 0;
}

/* ---- copies ---- */

/* Copy `rows` rows of `width` bytes; a copy to the host fills `pitch` bytes apart. */
static int copy(void *to, size_t pitch, const void *from, size_t width, size_t rows, void *stream,
                const char *name) {
  int into = is_device(to), out_of = is_device(from);
  int kind = into && out_of ? D2D : into ? H2D : D2H;
  int is_pageable = kind != D2D && !is_pinned(into ? from : to);
  if (is_pageable && is_captured(stream)) return refuse(CAPTURE_UNSUPPORTED, name);
  int error = enqueue(kind, name, stream, width * rows);
  if (error) return error;
  if (is_pageable && into) count(UNPINNED, name, width * rows);
  for (size_t i = 0; kind == D2H && i < rows && !is_captured(stream); i++)
    memset((char *)to + i * pitch, width * rows == 1, width);
  return 0;
}

API int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
  int error = refuse_unsafe("cudaMemcpy");
  if (error || (error = copy(to, 0, from, size, 1, 0, "cudaMemcpy"))) return error;
  return count(SYNC, "cudaMemcpy", 0);
}
API int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
  return copy(to, 0, from, size, 1, stream, "cudaMemcpyAsync");
}
API int cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t size, void *stream) {
  return copy(to, 0, from, size, 1, stream, "cudaMemcpyPeerAsync");
}
API int cudaMemcpy2DAsync(void *to, size_t pitch, const void *from, size_t from_pitch, size_t width,
                          size_t rows, int kind, void *stream) {
  return copy(to, pitch, from, width, rows, stream, "cudaMemcpy2DAsync");
}

API int cudaMemset(void *p, int value, size_t size) {
  return enqueue(MEMSET, "cudaMemset", 0, size);
}
API int cudaMemsetAsync(void *p, int value, size_t size, void *stream) {
  return enqueue(MEMSET, "cudaMemsetAsync", stream, size);
}
