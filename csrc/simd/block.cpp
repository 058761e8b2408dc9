// Moves blocks between strided and contiguous memory: gathers, splats, scatters and transposition in registers.
// Knows elements only by their size.
#include <cstdint>
#include <cstring>

#include "iterate.h"
#include "math.h"

namespace tritium::TRITIUM_ISA {
namespace {

// A square of W x W elements, one vector a row: 16 bytes, and 32 for the widest elements where registers hold that.
template <class T>
struct Square {
#if defined(__AVX2__)
  static constexpr int kBytes = sizeof(T) == 8 ? 32 : 16;
#else
  static constexpr int kBytes = 16;
#endif
  static constexpr int W = kBytes / static_cast<int>(sizeof(T));
  typedef T Row __attribute__((vector_size(kBytes)));
  Row row[W];
};

template <class T, class Row>
TRITIUM_INLINE Row interleave(Row a, Row b, bool high) {
  if constexpr (sizeof(Row) == 32) {
    return high ? __builtin_shufflevector(a, b, 2, 6, 3, 7) : __builtin_shufflevector(a, b, 0, 4, 1, 5);
  } else if constexpr (sizeof(T) == 8) {
    return high ? __builtin_shufflevector(a, b, 1, 3) : __builtin_shufflevector(a, b, 0, 2);
  } else if constexpr (sizeof(T) == 4) {
    return high ? __builtin_shufflevector(a, b, 2, 6, 3, 7) : __builtin_shufflevector(a, b, 0, 4, 1, 5);
  } else if constexpr (sizeof(T) == 2) {
    return high ? __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
                : __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  } else {
    return high ? __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
                : __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  }
}

// Interleaving row i with row i + W/2, log2(W) times over, is the transpose.
template <class T>
TRITIUM_INLINE void transpose(Square<T>& square) {
  constexpr int W = Square<T>::W;
  for (int step = 1; step < W; step *= 2) {
    Square<T> next;
    for (int i = 0; i < W / 2; ++i) {
      next.row[2 * i] = interleave<T>(square.row[i], square.row[i + W / 2], false);
      next.row[2 * i + 1] = interleave<T>(square.row[i], square.row[i + W / 2], true);
    }
    square = next;
  }
}

// to[i][j] = from[j][i], both with contiguous rows.
template <class T>
void transpose_block(char* to, std::int64_t to_row, const char* from, std::int64_t column, std::int64_t rows,
                     std::int64_t columns) {
  constexpr int W = Square<T>::W;
  constexpr int size = static_cast<int>(sizeof(T));
  const std::int64_t full_rows = rows - rows % W, full_columns = columns - columns % W;
  for (std::int64_t j = 0; j < full_columns; j += W) {
    for (std::int64_t i = 0; i < full_rows; i += W) {
      Square<T> square;
      for (int r = 0; r < W; ++r) std::memcpy(&square.row[r], from + (j + r) * column + i * size, Square<T>::kBytes);
      transpose(square);
      for (int r = 0; r < W; ++r) std::memcpy(to + (i + r) * to_row + j * size, &square.row[r], Square<T>::kBytes);
    }
  }
  for (std::int64_t j = 0; j < columns; ++j) {
    for (std::int64_t i = j < full_columns ? full_rows : 0; i < rows; ++i) {
      std::memcpy(to + i * to_row + j * size, from + j * column + i * size, size);
    }
  }
}

// Rows are mostly short: a call of memcpy each would cost more than the copy.
TRITIUM_INLINE void copy_row(char* to, const char* from, std::int64_t n) {
  if (n > 512 || n < 16) {
    std::memcpy(to, from, n);
    return;
  }
  for (std::int64_t i = 0; i + 16 < n; i += 16) std::memcpy(to + i, from + i, 16);
  std::memcpy(to + n - 16, from + n - 16, 16);
}

// An element of 16 bytes.
struct Pair {
  std::uint64_t first, second;
};

template <class T>
constexpr bool transposes(std::int64_t rows) {
  if constexpr (sizeof(T) > 8) return false;  // as wide as a register
  else return rows >= Square<T>::W;
}

// n copies of an element, a cache line at a time.
template <class T>
void fill(char* to, T value, std::int64_t n) {
  constexpr std::int64_t size = sizeof(T), each = 64 / size;
  std::int64_t j = 0;
  if (n >= each) {
    T line[each];
    for (T& one : line) one = value;
    for (; j + each <= n; j += each) std::memcpy(to + j * size, line, sizeof(line));
  }
  for (; j < n; ++j) std::memcpy(to + j * size, &value, size);
}

template <class T>
void gather(char* to, std::int64_t to_row, const char* from, std::int64_t row, std::int64_t column, std::int64_t rows,
            std::int64_t columns) {
  constexpr std::int64_t size = sizeof(T);
  if (column == size) {
    for (std::int64_t i = 0; i < rows; ++i) copy_row(to + i * to_row, from + i * row, columns * size);
  } else if (column == 0) {
    for (std::int64_t i = 0; i < rows; ++i) {
      T value;
      std::memcpy(&value, from + i * row, size);
      fill(to + i * to_row, value, columns);
    }
  } else if (row == size && transposes<T>(rows)) {
    if constexpr (sizeof(T) <= 8) transpose_block<T>(to, to_row, from, column, rows, columns);
  } else if (row != 0 && (row < 0 ? -row : row) < (column < 0 ? -column : column)) {
    for (std::int64_t j = 0; j < columns; ++j) {
      for (std::int64_t i = 0; i < rows; ++i) {
        std::memcpy(to + i * to_row + j * size, from + i * row + j * column, size);
      }
    }
  } else {
    for (std::int64_t i = 0; i < rows; ++i) {
      const char* source = from + i * row;
      char* line = to + i * to_row;
      for (std::int64_t j = 0; j < columns; ++j) std::memcpy(line + j * size, source + j * column, size);
    }
  }
}

template <class T>
void scatter(char* to, std::int64_t row, std::int64_t column, const char* from, std::int64_t rows,
             std::int64_t columns) {
  constexpr std::int64_t size = sizeof(T);
  for (std::int64_t i = 0; i < rows; ++i) {
    const char* line = from + i * columns * size;
    char* target = to + i * row;
    if (column == size) {
      copy_row(target, line, columns * size);
    } else {
      for (std::int64_t j = 0; j < columns; ++j) std::memcpy(target + j * column, line + j * size, size);
    }
  }
}

}  // namespace

void gather_block(char* to, std::int64_t to_row, const char* from, std::int64_t row, std::int64_t column,
                  std::int64_t rows, std::int64_t columns, std::int64_t item) {
  if (row == 0 && rows > 1) {  // every row alike: gather one, then double
    gather_block(to, to_row, from, 0, column, 1, columns, item);
    if (to_row != columns * item) {
      for (std::int64_t i = 1; i < rows; ++i) std::memcpy(to + i * to_row, to, columns * item);
      return;
    }
    const std::int64_t total = rows * to_row;
    for (std::int64_t done = to_row; done < total; done *= 2) {
      std::memcpy(to + done, to, done < total - done ? done : total - done);
    }
    return;
  }
  switch (item) {
    case 1: return gather<std::uint8_t>(to, to_row, from, row, column, rows, columns);
    case 2: return gather<std::uint16_t>(to, to_row, from, row, column, rows, columns);
    case 4: return gather<std::uint32_t>(to, to_row, from, row, column, rows, columns);
    case 16: return gather<Pair>(to, to_row, from, row, column, rows, columns);
    default: return gather<std::uint64_t>(to, to_row, from, row, column, rows, columns);
  }
}

void scatter_block(char* to, std::int64_t row, std::int64_t column, const char* from, std::int64_t rows,
                   std::int64_t columns, std::int64_t item) {
  switch (item) {
    case 1: return scatter<std::uint8_t>(to, row, column, from, rows, columns);
    case 2: return scatter<std::uint16_t>(to, row, column, from, rows, columns);
    case 4: return scatter<std::uint32_t>(to, row, column, from, rows, columns);
    case 16: return scatter<Pair>(to, row, column, from, rows, columns);
    default: return scatter<std::uint64_t>(to, row, column, from, rows, columns);
  }
}

}  // namespace tritium::TRITIUM_ISA
