"""Environment variables by which a stage tells its pipeline where it runs and how."""

STAGE_FOLDER = "FENCELOG_DEMO_STAGE_FOLDER"
DELIVERY = "FENCELOG_DEMO_DELIVERY"
MAX_OFFSETS = "FENCELOG_DEMO_MAX_OFFSETS"
