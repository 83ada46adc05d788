// How C = A B is cut into blocks, from the knobs that ktuned passes as macros.
#pragma once

#include <cstdint>

// The variants that ktuned must survive: each is one config of the space, wrong on purpose.
#define BLOCKED 0
#define BROKEN_BUILD 1  // does not compile
#define DROPS_TAIL 2    // computes wrongly
#define NULL_DEREF 3    // crashes
#define ENDLESS 4       // never returns

#ifndef VARIANT
#define VARIANT BLOCKED
#endif

namespace blocking {

constexpr int kLanes = 8;  // floats in one vector

constexpr int kTileRows = TILE_ROWS;  // of C, in registers
constexpr int kTileColumns = VARIANT == BROKEN_BUILD ? TILE_COLUMNS + 1 : TILE_COLUMNS;
constexpr int kBlockRows = BLOCK_ROWS;    // of A, packed to stay in the second-level cache
constexpr int kBlockDepth = BLOCK_DEPTH;  // of A and B
constexpr int kThreads = THREADS;

static_assert(kTileColumns % kLanes == 0, "TILE_COLUMNS must be a whole number of vectors");
static_assert(kBlockRows % kTileRows == 0, "BLOCK_ROWS must be a whole number of register tiles");

constexpr int kTileVectors = kTileColumns / kLanes;

constexpr int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

}  // namespace blocking
