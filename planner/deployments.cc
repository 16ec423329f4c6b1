#include "planner/deployments.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

namespace weft {
namespace {

void finish(Deployment& d, double requests_per_s, int64_t gen) {
  d.requests_per_s = requests_per_s;
  d.output_tokens_per_s = requests_per_s * static_cast<double>(gen);
  d.tokens_per_s_device = d.output_tokens_per_s / static_cast<double>(d.devices);
  d.tokens_per_s_user = d.tpot_s > 0 ? 1 / d.tpot_s : 0;
}

}  // namespace

int64_t Deployment::idle_devices() const {
  return devices - (prefill ? prefill->devices * prefill_instances : 0) - decode.devices * decode_instances;
}

std::string deployment_name(const Deployment& d) {
  if (!d.prefill) return to_string(d.decode.layout);
  return fmt::format("{} x {} prefill + {} x {} decode", d.prefill_instances, to_string(d.prefill->layout),
                     d.decode_instances, to_string(d.decode.layout));
}

Deployment deploy_together(const SearchPoint& point, int64_t gen) {
  Deployment d;
  d.devices = point.devices;
  d.decode = point;
  d.ttft_s = point.ttft_s;
  d.tpot_s = point.tpot_s;
  d.e2e_s = point.e2e_s;
  finish(d, point.requests_per_s, gen);
  return d;
}

std::vector<Deployment> deploy_apart(std::span<const SearchPoint> prefill, std::span<const SearchPoint> decode,
                                     int64_t devices, int64_t gen) {
  std::vector<Deployment> all;
  for (const SearchPoint& p : prefill) {
    for (const SearchPoint& d : decode) {
      Deployment best;
      for (int64_t decoders = 1; decoders * d.devices + p.devices <= devices; ++decoders) {
        const int64_t prefills = (devices - decoders * d.devices) / p.devices;
        const double requests_per_s = std::min(static_cast<double>(prefills) * p.requests_per_s,
                                               static_cast<double>(decoders) * d.requests_per_s);
        if (best.prefill && requests_per_s <= best.requests_per_s) continue;
        // No more prefill instances than the decoders can serve.
        const double needed = p.requests_per_s > 0 ? requests_per_s / p.requests_per_s : 1;
        best.prefill = p;
        best.prefill_instances =
            std::clamp<int64_t>(static_cast<int64_t>(std::ceil(needed * (1 - 1e-12))), 1, prefills);
        best.decode_instances = decoders;
        best.requests_per_s = requests_per_s;
      }
      if (!best.prefill) continue;
      best.devices = devices;
      best.decode = d;
      best.ttft_s = p.ttft_s;
      best.tpot_s = d.tpot_s;
      best.e2e_s = p.ttft_s + d.e2e_s;
      finish(best, best.requests_per_s, gen);
      all.push_back(std::move(best));
    }
  }
  return all;
}

std::vector<size_t> pareto_front(std::span<const Merit> merits) {
  std::vector<size_t> order(merits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tie(merits[a].first, merits[a].second) > std::tie(merits[b].first, merits[b].second);
  });
  std::vector<size_t> front;
  for (const size_t i : order) {
    if (front.empty() || merits[i].second > merits[front.back()].second) front.push_back(i);
  }
  std::reverse(front.begin(), front.end());
  return front;
}

double objective_value(const Deployment& d, Objective objective) {
  switch (objective) {
    case Objective::kThroughput: return d.output_tokens_per_s;
    case Objective::kCost: return d.tokens_per_s_device;
    case Objective::kLatency: return -d.e2e_s;
  }
  return 0;
}

bool ranks_before(const Deployment& a, const Deployment& b, Objective objective) {
  const auto key = [&](const Deployment& d) {
    return std::tuple(-objective_value(d, objective), -d.tokens_per_s_device, -d.tokens_per_s_user, d.devices,
                      d.prefill.has_value());
  };
  const auto ka = key(a), kb = key(b);
  return ka != kb ? ka < kb : deployment_name(a) < deployment_name(b);
}

}  // namespace weft
