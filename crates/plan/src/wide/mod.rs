//! Wide stripes with combined locality (ECWide, FAST'21): how they lie in racks, which clusters they fit, and what codes cost.

pub mod fitting;
pub mod geometry;
pub mod reliability;
pub mod trade_off;
