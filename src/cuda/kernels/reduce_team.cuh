// Where a team works in its block, whatever it multiplies with. The config defines kProductCells: the cells that each
// product's first unit meets at the block's first tap.
#pragma once

#include "reduce_params.cuh"

constexpr int kRowTiles = kShape.row_tiles;
constexpr int kTeamRuns = kShape.team_runs;
constexpr int kColumnTiles = kShape.column_tiles();

// From a unit of the shifted tensor to the one that its right neighbour in the rows' tensor meets, in cells.
constexpr int kPairCells = kShape.place_step(2) * kShape.team_columns;

struct TeamPlace {
  int first_row;
  int column_team;
  int run_team;
  int first_cell;         // of the team's columns in a stage
  int run_at[kTeamRuns];  // from there, in cells

  __device__ __forceinline__ TeamPlace(int team, int lead) {
    first_row = team % kShape.row_teams * kRowTiles * kShape.tile_rows();
    team /= kShape.row_teams;
    column_team = team % kShape.column_teams;
    run_team = team / kShape.column_teams;
    first_cell = kShape.row_cells() + column_team * kShape.team_cells() + lead * kShape.team_columns;
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) {
      // Teams are as many as divide the runs evenly, or some of them multiply their last run for nothing.
      int run = min(run_team * kTeamRuns + i, kShape.runs() - 1);
      const int w = run % kShape.width_runs() * kShape.run;
      run /= kShape.width_runs();
      const int h = run % kShape.taps[1];
      const int d = run / kShape.taps[1];
      const int row = d * kShape.place_tap(0) * kShape.extent(1) + h * kShape.place_tap(1);
      run_at[i] = (row * kShape.extent(2) + w * kShape.place_tap(2)) * kShape.team_columns;
    }
  }
};
