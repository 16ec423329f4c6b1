// kernels/index_topk/panel-inl.h
//
// The rows of the entries, a panel at a time. For SIMD sources; everything is in an unnamed namespace.
#pragma once

#include <immintrin.h>

#include "kernels/index_topk/index_topk_impl.h"

namespace weft {
namespace {

template <class Key>
struct Panel {
  const Key* rows[kIndexPanel + 1];  // one more to look ahead at
  int64_t count = 0;                 // the rows beyond it repeat the last one; their scores are not stored
};

// Walks the rows of the entries from `begin` on, a panel at a time.
template <class Key>
class RowCursor {
 public:
  RowCursor(const IndexScoresArgs& args, int64_t begin)
      : args_(&args), g_(begin), page_(begin / args.page_entries), row_(begin % args.page_entries) {}

  Panel<Key> next_panel() {
    Panel<Key> panel;
    for (; panel.count < kIndexPanel && g_ < args_->end; ++g_) {
      panel.rows[panel.count++] = static_cast<const Key*>(args_->pages[page_]) + row_ * args_->head_dim;
      if (++row_ == args_->page_entries) {
        row_ = 0;
        ++page_;
      }
    }
    for (int64_t i = panel.count; i <= kIndexPanel && panel.count > 0; ++i) panel.rows[i] = panel.rows[panel.count - 1];
    return panel;
  }

 private:
  const IndexScoresArgs* args_;
  int64_t g_, page_, row_;
};

// Fetches the rows of a panel into the first-level cache bit by bit while another panel is scored: all at once they would
// fill the queue of misses and the core would wait.
template <class Key>
class PanelFetch {
 public:
  // steps: how often advance will be called.
  PanelFetch(const Panel<Key>& panel, int64_t head_dim, int64_t steps)
      : panel_(panel),
        row_bytes_(head_dim * static_cast<int64_t>(sizeof(Key))),
        total_(panel.count * row_bytes_),
        step_((total_ / 64 + steps - 1) / steps * 64) {}

  void advance() {
    const int64_t end = done_ + step_ < total_ ? done_ + step_ : total_;
    for (; done_ < end; done_ += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(panel_.rows[row_]) + offset_, _MM_HINT_T0);
      offset_ += 64;
      if (offset_ >= row_bytes_) {
        offset_ = 0;
        ++row_;
      }
    }
  }

 private:
  const Panel<Key>& panel_;
  int64_t row_bytes_, total_, step_;
  int64_t done_ = 0, row_ = 0, offset_ = 0;
};

}  // namespace
}  // namespace weft
