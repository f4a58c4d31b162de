"""The job: federated averaging of three clients in NVFlare's simulator."""

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from task import Net

recipe = FedAvgRecipe(name="digits", model=Net(), min_clients=3, num_rounds=10, train_script="client.py")
run = recipe.execute(SimEnv(num_clients=3))
print(run.get_status(), run.get_result())
