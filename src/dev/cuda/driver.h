/* dev/cuda/driver.h - the part of NVIDIA's driver that the device uses.
 *
 * The driver is found when a card is asked for (dlopen of libcuda.so.1), so that one program serves machines with and
 * without it.  Names, numbers and layouts here are the driver's own interface, version 12 and up. */
#ifndef TERN_DEV_CUDA_DRIVER_H
#define TERN_DEV_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

typedef int tern_cu_result; /* 0: success */
typedef int tern_cu_device;
typedef uint64_t tern_cu_address; /* in the card's memory */
typedef struct tern_cu_context_s *tern_cu_context;
typedef struct tern_cu_module_s *tern_cu_module;
typedef struct tern_cu_function_s *tern_cu_function;
typedef struct tern_cu_stream_s *tern_cu_stream;
typedef struct tern_cu_event_s *tern_cu_event;
typedef struct tern_cu_graph_s *tern_cu_graph;
typedef struct tern_cu_graph_exec_s *tern_cu_graph_exec;

enum {
    TERN_CU_OUT_OF_MEMORY = 2,
    TERN_CU_NO_CARD = 100,
    TERN_CU_PEER_ALREADY = 704,

    /* attributes of a card */
    TERN_CU_SHARED_OPTIN = 97,
    TERN_CU_PROCESSORS = 16,
    TERN_CU_MAJOR = 75,
    TERN_CU_MINOR = 76,
    TERN_CU_MAPPABLE = 102,
    TERN_CU_L2_BYTES = 38,

    /* attributes of a function: bytes of a thread's stack; of shared memory beyond what it declares */
    TERN_CU_FUNCTION_LOCAL = 3,
    TERN_CU_FUNCTION_SHARED = 8,

    TERN_CU_LIMIT_STACK = 0,

    TERN_CU_STREAM_APART = 1, /* does not wait for the stream of number 0 */
    TERN_CU_EVENT_NO_TIME = 2,
    TERN_CU_LAUNCH_OVERLAP = 6, /* attribute of a launch: the kernel waits for the one before it by itself */
};

/* Where and how a piece of memory may be mapped. */
struct tern_cu_memory_at {
    int type, id; /* 1: a card, its number */
};

struct tern_cu_memory_kind {
    int type; /* 1: pinned */
    int handles;
    struct tern_cu_memory_at at;
    void *unused;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

struct tern_cu_memory_access {
    struct tern_cu_memory_at at;
    int rights; /* 3: read and write */
};

struct tern_cu_attribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        int number;
    } value;
};

struct tern_cu_launch {
    unsigned grid[3], block[3], shared;
    tern_cu_stream stream;
    struct tern_cu_attribute *attributes;
    unsigned n_attributes;
};

#define TERN_CU_LIST(X)                                                                                    \
    X(cuInit, (unsigned))                                                                                  \
    X(cuDriverGetVersion, (int *))                                                                         \
    X(cuGetErrorString, (tern_cu_result, const char **))                                                   \
    X(cuDeviceGetCount, (int *))                                                                           \
    X(cuDeviceGet, (tern_cu_device *, int))                                                                \
    X(cuDeviceGetName, (char *, int, tern_cu_device))                                                      \
    X(cuDeviceGetAttribute, (int *, int, tern_cu_device))                                                  \
    X(cuDeviceTotalMem_v2, (size_t *, tern_cu_device))                                                     \
    X(cuDevicePrimaryCtxGetState, (tern_cu_device, unsigned *, int *))                                     \
    X(cuDevicePrimaryCtxRetain, (tern_cu_context *, tern_cu_device))                                       \
    X(cuDevicePrimaryCtxRelease_v2, (tern_cu_device))                                                      \
    X(cuCtxSetCurrent, (tern_cu_context))                                                                  \
    X(cuCtxGetLimit, (size_t *, int))                                                                      \
    X(cuCtxSetLimit, (int, size_t))                                                                        \
    X(cuDeviceCanAccessPeer, (int *, tern_cu_device, tern_cu_device))                                      \
    X(cuCtxEnablePeerAccess, (tern_cu_context, unsigned))                                                  \
    X(cuMemGetInfo_v2, (size_t *, size_t *))                                                               \
    X(cuMemAlloc_v2, (tern_cu_address *, size_t))                                                          \
    X(cuMemFree_v2, (tern_cu_address))                                                                     \
    X(cuMemHostAlloc, (void **, size_t, unsigned))                                                         \
    X(cuMemFreeHost, (void *))                                                                             \
    X(cuMemHostRegister_v2, (void *, size_t, unsigned))                                                    \
    X(cuMemHostUnregister, (void *))                                                                       \
    X(cuMemAddressReserve, (tern_cu_address *, size_t, size_t, tern_cu_address, unsigned long long))       \
    X(cuMemAddressFree, (tern_cu_address, size_t))                                                         \
    X(cuMemCreate, (unsigned long long *, size_t, const struct tern_cu_memory_kind *, unsigned long long)) \
    X(cuMemRelease, (unsigned long long))                                                                  \
    X(cuMemMap, (tern_cu_address, size_t, size_t, unsigned long long, unsigned long long))                 \
    X(cuMemUnmap, (tern_cu_address, size_t))                                                               \
    X(cuMemSetAccess, (tern_cu_address, size_t, const struct tern_cu_memory_access *, size_t))             \
    X(cuMemcpyHtoDAsync_v2, (tern_cu_address, const void *, size_t, tern_cu_stream))                       \
    X(cuMemcpyDtoHAsync_v2, (void *, tern_cu_address, size_t, tern_cu_stream))                             \
    X(cuMemcpyDtoDAsync_v2, (tern_cu_address, tern_cu_address, size_t, tern_cu_stream))                    \
    X(cuMemsetD8Async, (tern_cu_address, unsigned char, size_t, tern_cu_stream))                           \
    X(cuStreamCreate, (tern_cu_stream *, unsigned))                                                        \
    X(cuStreamDestroy_v2, (tern_cu_stream))                                                                \
    X(cuStreamSynchronize, (tern_cu_stream))                                                               \
    X(cuStreamBeginCapture_v2, (tern_cu_stream, int))                                                      \
    X(cuStreamEndCapture, (tern_cu_stream, tern_cu_graph *))                                               \
    X(cuEventCreate, (tern_cu_event *, unsigned))                                                          \
    X(cuEventDestroy_v2, (tern_cu_event))                                                                  \
    X(cuEventRecord, (tern_cu_event, tern_cu_stream))                                                      \
    X(cuEventSynchronize, (tern_cu_event))                                                                 \
    X(cuEventElapsedTime, (float *, tern_cu_event, tern_cu_event))                                         \
    X(cuModuleLoadData, (tern_cu_module *, const void *))                                                  \
    X(cuModuleUnload, (tern_cu_module))                                                                    \
    X(cuModuleGetFunction, (tern_cu_function *, tern_cu_module, const char *))                             \
    X(cuFuncGetAttribute, (int *, int, tern_cu_function))                                                  \
    X(cuFuncSetAttribute, (tern_cu_function, int, int))                                                    \
    X(cuLaunchKernelEx, (const struct tern_cu_launch *, tern_cu_function, void **, void **))               \
    X(cuGraphInstantiateWithFlags, (tern_cu_graph_exec *, tern_cu_graph, unsigned long long))              \
    X(cuGraphLaunch, (tern_cu_graph_exec, tern_cu_stream))                                                 \
    X(cuGraphExecDestroy, (tern_cu_graph_exec))                                                            \
    X(cuGraphDestroy, (tern_cu_graph))

/* The driver's functions under the driver's names. */
struct tern_cu {
#define TERN_CU_MEMBER(name, args) tern_cu_result(*name) args;
    TERN_CU_LIST(TERN_CU_MEMBER)
#undef TERN_CU_MEMBER
};

extern struct tern_cu tern_cu; /* valid after tern_cu_load */

/* Finds the driver, once per process; every later call answers as the first.  Any thread.  TERN_ENOENT with one
 * sentence where there is none, or no card for it, TERN_EUNSUPPORTED where it is too old. */
int tern_cu_load(tern_error *err);

/* rc of a driver's function as an error: TERN_ENOMEM for a full card, else TERN_EIO; 0 for 0. */
int tern_cu_error(tern_cu_result rc, const char *doing, tern_error *err);

#endif
