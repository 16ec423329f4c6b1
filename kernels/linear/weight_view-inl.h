// Where the elements and scales of a WeightMatrix lie. Included inside an unnamed namespace by every source that reads stored
// weights, since those are compiled for several instruction sets.

// Elements, and bytes, from one row of data to the next.
static inline int64_t row_elements(const WeightMatrix& w) { return w.stride == 0 ? w.cols : w.stride; }
static inline int64_t row_bytes_of(const WeightMatrix& w) { return row_elements(w) * dtype_bits(w.dtype) / 8; }
static inline bool is_contiguous(const WeightMatrix& w) { return row_elements(w) == w.cols; }

// Scales are counted from the first that the view has: group g of a row holds the columns of the view
//   [g * columns - skipped, (g + 1) * columns - skipped),  cut to [0, cols).
struct ScaleGroups {
  int64_t columns, skipped;
  int64_t of(int64_t k) const { return (k + skipped) / columns; }
  int64_t end(int64_t group) const { return (group + 1) * columns - skipped; }
};
static inline ScaleGroups scale_groups(const WeightMatrix& w) {
  if (w.scale == nullptr) return {w.cols, 0};  // one group
  return {w.block_cols, w.col0 % w.block_cols};
}

// Index of the scale of group 0 of a row.
static inline int64_t scale_offset(const WeightMatrix& w, int64_t row) {
  const int64_t stride = w.scale_stride == 0 ? (w.cols + w.block_cols - 1) / w.block_cols : w.scale_stride;
  return (row + w.row0) / w.block_rows * stride + w.col0 / w.block_cols;
}
