//! Wide stripes with combined locality (ECWide, FAST'21): their layout in racks, the clusters they fit, and the costs
//! of codes.

pub mod fitting;
pub mod geometry;
pub mod reliability;
pub mod trade_off;
