// A profile as the JSON text that parse_device_profile reads.
#include "io/json.h"
#include "planner/device_profile.h"

namespace weft {
namespace {

using Object = nlohmann::ordered_json;

Object of(const Figure& figure) {
  return {{"value", figure.value}, {"source", figure.source}, {"verified", figure.verified}};
}

void put(Object& object, const char* key, const std::optional<Figure>& figure) {
  if (figure) object[key] = of(*figure);
}

Object of(const std::map<DType, Figure>& peaks) {
  Object object = Object::object();
  for (const auto& [dtype, figure] : peaks) object[std::string(dtype_name(dtype))] = of(figure);
  return object;
}

Object of(const LaunchCosts& costs) {
  return {{"matrix_s", of(costs.matrix_s)}, {"vector_s", of(costs.vector_s)}, {"collective_s", of(costs.collective_s)}};
}

Object of(const EfficiencyTable& table) {
  Object object = {{"op", table.op}};
  if (!table.weight.empty()) object["weight"] = table.weight;
  if (!table.activation.empty()) object["activation"] = table.activation;
  if (table.ranks != 0) object["ranks"] = table.ranks;
  if (table.threads != 0) object["threads"] = table.threads;
  if (table.cached) object["cached"] = true;
  if (table.measured) object["measured"] = true;
  if (!table.axes.empty()) {
    object["axes"] = Object::array();
    for (const EfficiencyTable::Axis& axis : table.axes)
      object["axes"].push_back({{"name", axis.name}, {"values", axis.values}});
  }
  object["values"] = table.values;
  object["source"] = table.provenance.source;
  object["verified"] = table.provenance.verified;
  return object;
}

Object of(const Link& link) {
  Object object = {{"level", link.level},
                   {"kind", std::string(link_kind_name(link.kind))},
                   {"peers", link.peers},
                   {"bytes_per_s", of(link.bytes_per_s)},
                   {"latency_s", of(link.latency_s)},
                   {"full_duplex", link.full_duplex},
                   {"efficiency", link.efficiency}};
  if (!link.algorithms.empty()) {
    object["algorithms"] = Object::array();
    for (const CollectiveAlgorithm a : link.algorithms)
      object["algorithms"].push_back(std::string(collective_algorithm_name(a)));
  }
  return object;
}

}  // namespace

std::string device_profile_json(const DeviceProfile& profile) {
  Object object = {
      {"schema", 1}, {"name", profile.name}, {"vendor", profile.vendor}, {"description", profile.description}};
  Object memory = Object::object(), cache = Object::object();
  put(memory, "nominal_bytes", profile.nominal_bytes);
  put(memory, "visible_bytes", profile.visible_bytes);
  put(memory, "bytes_per_s", profile.memory_bytes_per_s);
  put(cache, "bytes", profile.cache_bytes);
  put(cache, "bytes_per_s", profile.cache_bytes_per_s);
  object["memory"] = memory;
  if (!cache.empty()) object["cache"] = cache;
  object["matrix_flops_per_s"] = of(profile.matrix_flops_per_s);
  object["vector_flops_per_s"] = of(profile.vector_flops_per_s);
  if (!profile.launch_graph.matrix_s.source.empty()) {
    object["launch"] = {{"eager", of(profile.launch_eager)}, {"graph", of(profile.launch_graph)}};
  }
  object["efficiency"] = Object::array();
  for (const EfficiencyTable& table : profile.efficiency) object["efficiency"].push_back(of(table));
  object["links"] = Object::array();
  for (const Link& link : profile.links) object["links"].push_back(of(link));
  if (profile.is_cpu()) {
    object["cpu"] = {{"cores", profile.cores}, {"isa", profile.isa}, {"shared_bandwidth", Object::array()}};
    for (const SharedBandwidth& s : profile.shared_bandwidth) {
      object["cpu"]["shared_bandwidth"].push_back(
          {{"ranks", s.ranks}, {"threads", s.threads}, {"bytes_per_s", s.bytes_per_s}});
    }
  }
  if (!profile.notes.empty()) object["notes"] = profile.notes;
  return object.dump(1) + "\n";
}

}  // namespace weft
