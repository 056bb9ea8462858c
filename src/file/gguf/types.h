/* file/gguf/types.h - types of values in GGUF's metadata, as files number them.  Private to this folder. */
#ifndef TERN_FILE_GGUF_TYPES_H
#define TERN_FILE_GGUF_TYPES_H

enum gguf_value {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_N_VALUES
};

#endif
