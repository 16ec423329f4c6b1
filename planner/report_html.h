// One self-contained page of a plan, a search, or both: styles, script and data in one file, nothing is loaded from elsewhere.
//
// The page draws what the JSON of the same plan and search says (planner/report.h, planner/search_report.h), which it carries as
// data; its sources are the files of planner/html/.
#pragma once

#include <filesystem>
#include <string>

#include "planner/plan.h"
#include "planner/search.h"

namespace weft {

struct HtmlReport {
  std::string title;                     // of the page
  const Plan* plan = nullptr;            // PlanOptions::ops and ::timeline; null: none
  const SearchResult* search = nullptr;  // null: none
};

std::string report_html(const HtmlReport& report);

// At once or not at all: a reader of the file never sees half of it.
Status write_report_html(const std::filesystem::path& path, const HtmlReport& report);

}  // namespace weft
