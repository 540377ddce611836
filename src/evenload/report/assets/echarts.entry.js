// What of Apache ECharts the report and the live page use; see README.md for how it is bundled.
import { BarChart, HeatmapChart, LineChart, ScatterChart } from "echarts/charts";
import {
  AriaComponent, AxisPointerComponent, DataZoomInsideComponent, GridComponent, LegendComponent, MarkAreaComponent,
  MarkLineComponent, TooltipComponent, VisualMapContinuousComponent,
} from "echarts/components";
import { use } from "echarts/core";
import { CanvasRenderer } from "echarts/renderers";

use([
  BarChart, HeatmapChart, LineChart, ScatterChart, AriaComponent, AxisPointerComponent, DataZoomInsideComponent,
  GridComponent, LegendComponent, MarkAreaComponent, MarkLineComponent, TooltipComponent, VisualMapContinuousComponent,
  CanvasRenderer,
]);

export { connect, disconnect, init, version } from "echarts/core";
